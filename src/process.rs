//! This process, and programs that we start: an environment of their own, a process group of their own, and nothing of it outlives its holder.

use std::{io, process::Stdio, sync::Arc, time::Duration};

use rustix::process::{Pid, Signal, kill_process_group};
use secrecy::{ExposeSecret, SecretString};
use tokio::{
    process::{Child, Command},
    runtime::Handle,
    time::timeout,
};

/// What this process is called where several work at once: its host and its id.
pub(crate) fn name() -> Arc<str> {
    let host = rustix::system::uname();
    format!("{}/{}", host.nodename().to_string_lossy(), std::process::id()).into()
}

pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// From TERM to KILL.
pub(crate) const TERM_GRACE: Duration = Duration::from_secs(2);
/// Linux takes no environment variable of 128 KiB or more, and then no program starts.
const MAX_VARIABLE: usize = 120 * 1024;

/// A program with its arguments (no shell), ready to be started: three pipes, and nothing of our environment but `pass_env`.
pub(crate) fn program(
    command: &[String],
    env: &[(String, SecretString)],
    pass_env: &[String],
    cwd: Option<&str>,
) -> Command {
    let mut program = Command::new(command.first().map_or("", String::as_str));
    program.args(command.iter().skip(1)).env_clear().env("PATH", PATH);
    let passed = pass_env.iter().filter_map(|name| Some((name.as_str(), std::env::var(name).ok()?)));
    let own = env.iter().map(|(name, value)| (name.as_str(), value.expose_secret().to_owned()));
    program.envs(passed.chain(own).filter(|(name, value)| can_be_set(name, value)));
    if let Some(cwd) = cwd {
        program.current_dir(cwd);
    }
    program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    program.process_group(0).kill_on_drop(true);
    program
}

/// One variable that cannot be set would keep the program from starting at all: it is left out.
pub(crate) fn can_be_set(name: &str, value: &str) -> bool {
    let name_is_fine = !name.is_empty() && !name.contains(['=', '\0']);
    name_is_fine && !value.contains('\0') && name.len() + value.len() < MAX_VARIABLE
}

/// A started program and its process group. Dropping it ends the group: TERM, then KILL.
pub(crate) struct Running {
    group: Pid,
    child: Option<Child>,
}

impl Running {
    pub(crate) fn start(mut program: Command) -> io::Result<Self> {
        let child = program.spawn()?;
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let group = pid.ok_or_else(|| io::Error::new(io::ErrorKind::WouldBlock, "no process id"))?;
        Ok(Self { group, child: Some(child) })
    }

    /// Its process, until it was stopped.
    pub(crate) fn child(&mut self) -> Option<&mut Child> {
        self.child.as_mut()
    }

    /// After the program has ended: kills what is left of its group. A program that was given up while it ran is stopped.
    pub(crate) async fn stop_rest(&mut self) {
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
    pub(crate) async fn stop(&mut self) {
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
