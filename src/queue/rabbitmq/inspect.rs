//! A look at the broker from beside, for an operator: who it is, and what of the topology is there.

use std::time::Duration;

use lapin::{
    Connection, ExchangeKind,
    options::ExchangeDeclareOptions,
    types::{FieldTable, ShortString},
    uri::{AMQPScheme, AMQPUri},
};
use secrecy::ExposeSecret;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::{
    super::{Found, Inspection, RabbitMqConfig},
    Pools,
    connection::{RPC_TIMEOUT, close, connect, short, within},
    topology::{Names, look},
};

const HELLO: &[u8] = b"AMQP\0\0\x09\x01";
const PATIENCE: Duration = Duration::from_secs(5);

/// The error says why the broker cannot be looked at; it shows nothing of the URL.
pub(super) async fn inspect(config: &RabbitMqConfig, pools: &[String]) -> Result<Inspection, String> {
    let names = Names::new(&config.prefix, &Pools { names: pools.to_vec(), own: None });
    let connection = connect(&config.url, "check").await.map_err(|failure| failure.reason)?;
    let mut parts = Vec::new();
    for exchange in [&names.exchange, &names.dead_exchange] {
        parts.push((format!("exchange {exchange}"), exchange_is_there(&connection, exchange).await));
    }
    for queue in names.queues() {
        parts.push((format!("queue {queue}"), queue_is_there(&connection, queue).await));
    }
    close(&connection).await;
    Ok(Inspection { version: version(config).await, parts })
}

/// What is not there closes the channel: each look has its own.
async fn exchange_is_there(connection: &Connection, name: &ShortString) -> Result<Found, String> {
    let look = async {
        let channel = connection.create_channel().await?;
        let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        channel.exchange_declare(name.clone(), ExchangeKind::Direct, passive, FieldTable::default()).await?;
        channel.close(200, short("looked")).await
    };
    within(RPC_TIMEOUT, "looking", look).await.map_err(|failure| failure.reason)?;
    Ok(Found { messages: None, consumers: None })
}

async fn queue_is_there(connection: &Connection, name: &ShortString) -> Result<Found, String> {
    let look = async {
        let channel = connection.create_channel().await?;
        let found = look(&channel, name).await?;
        channel.close(200, short("looked")).await?;
        Ok(found)
    };
    let found = within(RPC_TIMEOUT, "looking", look).await.map_err(|failure| failure.reason)?;
    Ok(Found { messages: Some(found.message_count().into()), consumers: Some(found.consumer_count().into()) })
}

/// From the broker's first words, which the library keeps to itself; not told over TLS.
async fn version(config: &RabbitMqConfig) -> Option<String> {
    let uri: AMQPUri = config.url.expose_secret().parse().ok()?;
    if uri.scheme != AMQPScheme::AMQP {
        return None;
    }
    let ask = async {
        let mut socket = TcpStream::connect((uri.authority.host.as_str(), uri.authority.port)).await.ok()?;
        socket.write_all(HELLO).await.ok()?;
        let mut start = vec![0; 7];
        socket.read_exact(&mut start).await.ok()?;
        let length = u32::from_be_bytes(start[3..7].try_into().ok()?);
        let mut payload = vec![0; usize::try_from(length).ok()?.min(64 << 10)];
        socket.read_exact(&mut payload).await.ok()?;
        version_of(&payload)
    };
    timeout(PATIENCE, ask).await.ok()?
}

/// The text of `version` in the server's properties: a short name, `S`, a length, the text.
fn version_of(start: &[u8]) -> Option<String> {
    const KEY: &[u8] = b"\x07versionS";
    let at = start.windows(KEY.len()).position(|window| window == KEY)? + KEY.len();
    let length = u32::from_be_bytes(start.get(at..at + 4)?.try_into().ok()?);
    let text = start.get(at + 4..at + 4 + usize::try_from(length).ok()?)?;
    let text = std::str::from_utf8(text).ok()?;
    (text.len() < 32 && text.chars().all(|c| c.is_ascii_graphic())).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_brokers_properties() {
        let start = b"\0\x0a\0\x0a\0\x09\0\0\0\x40\x07productS\0\0\0\x08RabbitMQ\x07versionS\0\0\0\x063.10.8rest";
        assert_eq!(version_of(start).as_deref(), Some("3.10.8"));
        assert_eq!(version_of(b"\x07versionS\0\0\0\xff3.1"), None);
        assert_eq!(version_of(b"\x07versionS\0\0"), None);
        assert_eq!(version_of(b""), None);
    }
}
