//! Group commit: while one commit runs, what arrives waits and goes together in the next; a lone caller waits for nobody.

use std::{future::Future, time::Duration};

use tokio::sync::{mpsc, oneshot};

use super::{Error, Result};

/// A question on its way to the next batch.
type Waiting<I, O> = (I, oneshot::Sender<Result<O>>);

/// Hands single questions to a function that answers many at once.
pub(crate) struct Group<I, O> {
    waiting: mpsc::Sender<Waiting<I, O>>,
}

impl<I: Send + 'static, O: Send + 'static> Group<I, O> {
    /// `run` answers a batch of 1 to `most` questions, each answer at its question's place, within `timeout`.
    pub(crate) fn spawn<F, R>(most: usize, timeout: Duration, run: F) -> Self
    where
        F: Fn(Vec<I>) -> R + Send + 'static,
        R: Future<Output = Result<Vec<O>>> + Send,
    {
        let (waiting, mut arrived) = mpsc::channel::<Waiting<I, O>>(most * 4);
        tokio::spawn(async move {
            let mut batch = Vec::with_capacity(most);
            while arrived.recv_many(&mut batch, most).await > 0 {
                let (questions, callers): (Vec<I>, Vec<_>) = batch.drain(..).unzip();
                let answers = match tokio::time::timeout(timeout, run(questions)).await {
                    Ok(answers) => answers,
                    Err(_) => Err(Error::new("the store did not answer in time")),
                };
                deliver(callers, answers);
            }
        });
        Self { waiting }
    }

    pub(crate) async fn ask(&self, question: I) -> Result<O> {
        let answer = self.tell(question).await?;
        answer.await.map_err(|_| Error::new("the store is closed"))?
    }

    /// Asks without waiting for the answer, which may be dropped.
    pub(crate) async fn tell(&self, question: I) -> Result<oneshot::Receiver<Result<O>>> {
        let (caller, answer) = oneshot::channel();
        self.waiting.send((question, caller)).await.map_err(|_| Error::new("the store is closed"))?;
        Ok(answer)
    }
}

fn deliver<O>(callers: Vec<oneshot::Sender<Result<O>>>, answers: Result<Vec<O>>) {
    match answers {
        Ok(answers) => {
            for (caller, answer) in callers.into_iter().zip(answers) {
                let _ = caller.send(Ok(answer));
            }
        }
        Err(error) => {
            for caller in callers {
                let _ = caller.send(Err(error.clone()));
            }
        }
    }
}
