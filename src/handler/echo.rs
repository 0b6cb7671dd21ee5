//! Answers its own arguments; for trying things out.

use async_trait::async_trait;

use super::{Call, Error, Handler};
use crate::session::Output;

pub struct Echo;

#[async_trait]
impl Handler for Echo {
    async fn call(&self, call: &Call) -> Result<Output, Error> {
        Ok(Output::Text(call.arguments.text().to_owned()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::handler::tests::call;

    #[tokio::test]
    async fn the_arguments_come_back_as_they_were_read() {
        let call = call(r#"{"id": 2512292042121000001}"#);
        let output = Echo.call(&call).await.unwrap();
        assert_eq!(output, Output::Text(r#"{"id":2512292042121000001}"#.into()));
    }
}
