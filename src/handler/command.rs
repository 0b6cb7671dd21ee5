//! Runs a program: arguments on standard input, output on standard output.

use std::{
    io,
    os::unix::process::ExitStatusExt,
    process::ExitStatus,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, Command as Program},
    time::timeout,
};

use super::{Call, CommandConfig, Error, Handler, Response, output};
use crate::{
    process::{self, Running},
    session::Output,
};

/// A program asks for another attempt with this status (`EX_TEMPFAIL`).
const TRY_AGAIN: i32 = 75;
/// How long output is still read after the program ended, where a process it left behind holds the pipe.
const OUTPUT_GRACE: Duration = Duration::from_millis(500);

pub struct Command {
    config: CommandConfig,
}

impl Command {
    /// The error says where in the handler's config, and what.
    pub fn new(config: &CommandConfig) -> Result<Self, (String, String)> {
        match config.command.first() {
            Some(program) if !program.is_empty() => Ok(Self { config: config.clone() }),
            _ => Err(("command".into(), "must name a program".into())),
        }
    }

    fn program(&self, call: &Call, deadline: Option<SystemTime>) -> Program {
        let config = &self.config;
        let mut program = process::program(&config.command, &config.env, &config.pass_env, config.cwd.as_deref());
        program.envs(identity(call, deadline).filter(|(name, value)| process::can_be_set(name, value)));
        program
    }
}

#[async_trait]
impl Handler for Command {
    async fn call(&self, call: &Call) -> Result<Output, Error> {
        let now = SystemTime::now();
        let limit = call.time_left(self.config.timeout, now);
        let program = self.program(call, now.checked_add(limit));
        let mut running = Running::start(program).map_err(|e| not_started(&e))?;
        match timeout(limit, finish(&mut running, call.arguments.text().as_bytes(), self.config.max_output)).await {
            Ok(finished) => {
                running.stop_rest().await;
                finished?.output(self.config.response)
            }
            Err(_) => {
                running.stop().await;
                Err(Error::unknown(format!("the program did not end within {limit:.1?}")))
            }
        }
    }
}

/// What tells a program which call it serves.
fn identity<'a>(call: &Call, deadline: Option<SystemTime>) -> impl Iterator<Item = (&'a str, String)> {
    let deadline = deadline.and_then(|at| Timestamp::try_from(at).ok()).unwrap_or(Timestamp::MAX);
    [
        ("ACTIOND_FUNCTION", call.function.clone()),
        ("ACTIOND_PLATFORM", call.key.session.platform.to_string()),
        ("ACTIOND_SESSION_ID", call.key.session.session.to_string()),
        ("ACTIOND_TURN_ID", call.key.turn.to_string()),
        ("ACTIOND_CALL_ID", call.key.call_id.to_string()),
        ("ACTIOND_ATTEMPT", call.attempt.to_string()),
        ("ACTIOND_IDEMPOTENCY_KEY", call.key.handler_idempotency_key()),
        ("ACTIOND_DEADLINE", deadline.to_string()),
        ("ACTIOND_METADATA", serde_json::to_string(&*call.metadata).unwrap_or_default()),
    ]
    .into_iter()
    .chain(call.traceparent.clone().map(|traceparent| ("TRACEPARENT", traceparent)))
}

/// How a program ended by itself.
struct Finished {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr_bytes: u64,
}

/// Feeds and reads until the program itself has ended. Processes that it left behind are not waited for.
async fn finish(running: &mut Running, input: &[u8], cap: usize) -> Result<Finished, Error> {
    let gone = || Error::unknown("the program could not be watched");
    let child = running.child().ok_or_else(gone)?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let stderr_bytes = AtomicU64::new(0);
    let mut output = Vec::new();
    let status = {
        let reading =
            async { tokio::try_join!(read_up_to(stdout, &mut output, cap), count(stderr, &stderr_bytes)).map(drop) };
        let feeding = async {
            feed(stdin, input).await;
            std::future::pending::<()>().await
        };
        tokio::select! {
            status = until_exit(child, reading) => status?,
            () = feeding => return Err(gone()),
        }
    };
    Ok(Finished { status, stdout: output, stderr_bytes: stderr_bytes.into_inner() })
}

impl Finished {
    fn output(self, response: Response) -> Result<Output, Error> {
        let said = format!("{} bytes on standard error", self.stderr_bytes);
        match self.status.code() {
            Some(0) if response == Response::Text => {
                let line = self.stdout.strip_suffix(b"\n").map(|line| line.strip_suffix(b"\r").unwrap_or(line));
                output::read(response, line.unwrap_or(&self.stdout))
            }
            Some(0) => output::read(response, &self.stdout),
            Some(TRY_AGAIN) => Err(Error::retryable(format!("exit status {TRY_AGAIN} (try again), {said}"))),
            Some(code) => Err(Error::fatal(format!("exit status {code}, {said}"))),
            // Out of memory, or an operator: the next attempt may do better.
            None => {
                let signal = self.status.signal().unwrap_or_default();
                Err(Error::unknown(format!("killed by signal {signal}, {said}")))
            }
        }
    }
}

fn not_started(error: &io::Error) -> Error {
    use io::ErrorKind::{ExecutableFileBusy, OutOfMemory, ResourceBusy, WouldBlock};

    let detail = format!("the program could not be started: {}", error.kind());
    let no_descriptors = matches!(
        error.raw_os_error().map(rustix::io::Errno::from_raw_os_error),
        Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE)
    );
    match error.kind() {
        WouldBlock | OutOfMemory | ResourceBusy | ExecutableFileBusy => Error::retryable(detail),
        _ if no_descriptors => Error::retryable(detail),
        _ => Error::fatal(detail),
    }
}

/// Waits for the program itself; its output is read meanwhile, and after it for a moment at most.
async fn until_exit(child: &mut Child, reading: impl Future<Output = Result<(), Error>>) -> Result<ExitStatus, Error> {
    let mut reading = std::pin::pin!(reading);
    let mut open = true;
    loop {
        tokio::select! {
            status = child.wait() => {
                let status = status.map_err(|e| Error::unknown(format!("the program was lost: {}", e.kind())))?;
                if open && let Ok(read) = timeout(OUTPUT_GRACE, reading).await {
                    read?;
                }
                return Ok(status);
            }
            read = &mut reading, if open => {
                read?;
                open = false;
            }
        }
    }
}

async fn read_up_to(from: Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>, cap: usize) -> Result<(), Error> {
    let Some(mut from) = from else { return Ok(()) };
    let mut buffer = vec![0; 16 * 1024];
    loop {
        match from.read(&mut buffer).await {
            Ok(0) => return Ok(()),
            Ok(read) if read > cap - into.len() => return Err(Error::too_large(cap)),
            Ok(read) => into.extend_from_slice(&buffer[..read]),
            Err(e) => return Err(Error::unknown(format!("the output could not be read: {}", e.kind()))),
        }
    }
}

/// A program need not read its input: a closed pipe is no error.
async fn feed(stdin: Option<impl AsyncWriteExt + Unpin>, input: &[u8]) {
    if let Some(mut stdin) = stdin {
        let _ = stdin.write_all(input).await;
        let _ = stdin.shutdown().await;
    }
}

/// Standard error is read so that nobody blocks on it, and only counted: it may hold anything.
async fn count(stderr: Option<impl AsyncRead + Unpin>, bytes: &AtomicU64) -> Result<(), Error> {
    let Some(mut stderr) = stderr else { return Ok(()) };
    let mut buffer = vec![0; 4 * 1024];
    while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
        bytes.fetch_add(read as u64, Ordering::Relaxed);
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
