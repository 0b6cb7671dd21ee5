//! Runs a program: arguments on standard input, output on standard output, in a process group of its own.

use std::{
    io,
    os::unix::process::ExitStatusExt,
    process::{ExitStatus, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process_group};
use secrecy::ExposeSecret;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, Command as Program},
    runtime::Handle,
    time::timeout,
};

use super::{Call, CommandConfig, Error, Handler, Response, output};
use crate::session::Output;

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// A program asks for another attempt with this status (`EX_TEMPFAIL`).
const TRY_AGAIN: i32 = 75;
/// From TERM to KILL.
const TERM_GRACE: Duration = Duration::from_secs(2);
/// How long output is still read after the program ended, where a process it left behind holds the pipe.
const OUTPUT_GRACE: Duration = Duration::from_millis(500);
/// Linux takes no environment variable of 128 KiB or more, and then no program starts.
const MAX_VARIABLE: usize = 120 * 1024;

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
        let mut program = Program::new(&self.config.command[0]);
        program.args(&self.config.command[1..]).env_clear().env("PATH", PATH);
        let passed = self.config.pass_env.iter().filter_map(|name| Some((name.as_str(), std::env::var(name).ok()?)));
        let own = self.config.env.iter().map(|(name, value)| (name.as_str(), value.expose_secret().to_owned()));
        program.envs(passed.chain(own).chain(identity(call, deadline)).filter(|(name, value)| can_be_set(name, value)));
        if let Some(cwd) = &self.config.cwd {
            program.current_dir(cwd);
        }
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        program.process_group(0).kill_on_drop(true);
        program
    }
}

#[async_trait]
impl Handler for Command {
    async fn call(&self, call: &Call) -> Result<Output, Error> {
        let now = SystemTime::now();
        let limit = call.time_left(self.config.timeout, now);
        let mut running = Running::start(self.program(call, now.checked_add(limit)))?;
        match timeout(limit, running.finish(call.arguments.text().as_bytes(), self.config.max_output)).await {
            Ok(finished) => {
                running.stop_rest().await;
                finished?.output(self.config.response)
            }
            Err(_) => {
                running.stop().await;
                Err(Error::retryable(format!("the program did not end within {limit:.1?}")))
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

/// One variable that cannot be set would keep the program from starting at all: it is left out.
fn can_be_set(name: &str, value: &str) -> bool {
    let name_is_fine = !name.is_empty() && !name.contains(['=', '\0']);
    name_is_fine && !value.contains('\0') && name.len() + value.len() < MAX_VARIABLE
}

/// A started program and its process group. Dropping it ends the group: TERM, then KILL.
struct Running {
    group: Pid,
    child: Option<Child>,
}

/// How a program ended by itself.
struct Finished {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr_bytes: u64,
}

impl Running {
    fn start(mut program: Program) -> Result<Self, Error> {
        let child = program.spawn().map_err(|e| not_started(&e))?;
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let group = pid.ok_or_else(|| Error::retryable("the program has no process id"))?;
        Ok(Self { group, child: Some(child) })
    }

    /// Feeds and reads until the program itself has ended. Processes that it left behind are not waited for.
    async fn finish(&mut self, input: &[u8], cap: usize) -> Result<Finished, Error> {
        let gone = || Error::retryable("the program could not be watched");
        let child = self.child.as_mut().ok_or_else(gone)?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let stderr_bytes = AtomicU64::new(0);
        let mut output = Vec::new();
        let status = {
            let reading = async {
                tokio::try_join!(read_up_to(stdout, &mut output, cap), count(stderr, &stderr_bytes)).map(drop)
            };
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

    /// After the program itself: kills what is left of its group. A program that was given up while it ran is stopped.
    async fn stop_rest(&mut self) {
        match self.child.as_mut().map(Child::try_wait) {
            Some(Ok(Some(_))) => {
                // The kernel does not give the group's number away while it has members. Where it has none, all numbers
                // would have to be used up since the program ended for this to meet a stranger.
                let _ = kill_process_group(self.group, Signal::KILL);
                self.child = None;
            }
            _ => self.stop().await,
        }
    }

    /// TERM for the group, KILL for whoever is left when the program has ended or the grace is over.
    async fn stop(&mut self) {
        let Some(child) = self.child.as_mut() else { return };
        let _ = kill_process_group(self.group, Signal::TERM);
        let _ = timeout(TERM_GRACE, child.wait()).await;
        let _ = kill_process_group(self.group, Signal::KILL);
        // One that not even KILL ends (a dead disk) must not hold the call.
        let _ = timeout(TERM_GRACE, child.wait()).await;
        self.child = None;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let _ = kill_process_group(self.group, Signal::TERM);
        let rest = KillOnDrop(self.group);
        if let Ok(runtime) = Handle::try_current() {
            // A runtime that ends drops the task, and with it the group is killed.
            runtime.spawn(async move {
                let _ = timeout(TERM_GRACE, child.wait()).await;
                drop(rest);
                let _ = child.wait().await;
            });
        }
    }
}

struct KillOnDrop(Pid);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = kill_process_group(self.0, Signal::KILL);
    }
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
                Err(Error::retryable(format!("killed by signal {signal}, {said}")))
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
                let status = status.map_err(|e| Error::retryable(format!("the program was lost: {}", e.kind())))?;
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
            Err(e) => return Err(Error::retryable(format!("the output could not be read: {}", e.kind()))),
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
