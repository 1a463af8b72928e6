//! Executes a command of the engine or a script of the user. Prints its output redacted and without delay, and stops it according to
//! [`StopPolicy`].

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::engine::processes::{Processes, Scope};
use crate::engine::signals::Stop;
use crate::log_tail::LogTail;
use crate::paths::Vars;
use crate::secrets::redact::Redactor;

/// Maximum size of the tail of standard output, and of standard error, that [`Finished`] contains, in bytes.
const TAIL: usize = 64 * 1024;
/// Interval at which the runner checks whether an interrupted command has ended.
const TICK: Duration = Duration::from_millis(100);
/// Time between SIGINT and SIGKILL: for [`StopPolicy::Quick`], and for [`StopPolicy::Persistent`] after the deadline.
const QUICK_END: Duration = Duration::from_secs(15);
/// Time limit for reading the remaining output of a command that has ended. A child process of the command may still run and keep the
/// stream open.
const LAST_OUTPUT: Duration = Duration::from_secs(2);
/// Part of the grace period that is reserved for writing the run report.
const FOR_THE_REPORT: Duration = Duration::from_secs(20);

/// How a command is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopPolicy {
    /// For a command that changes nothing. The runner interrupts the command, and kills it after 15 seconds.
    Quick,
    /// For a command that may change objects. The runner sends one SIGINT to each engine process, waits for the grace period, and never
    /// kills the command.
    Graceful,
    /// For a command that saves data. The command continues until its deadline, even if the run must stop.
    Persistent,
}

/// Destination of the output of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// Output is redacted and printed to the log.
    Log,
    /// Standard output is returned to the caller, complete and unredacted. Standard error is redacted, returned to the caller and added to
    /// the log tail, but not printed. The runner sends signals only to the process tree of the command, because other commands may run in
    /// parallel.
    Caller,
}

/// Command to execute.
pub struct Task {
    /// Path of the program, or its name on the PATH.
    pub program: PathBuf,
    /// Arguments without the program.
    pub arguments: Vec<OsString>,
    /// Working directory of the process.
    pub directory: PathBuf,
    /// Complete environment: the process inherits no variables of the runner.
    pub environment: Vars,
    /// How the command is stopped.
    pub stop_policy: StopPolicy,
    /// Time at which the command is stopped.
    pub deadline: Instant,
    /// Destination of the output.
    pub show: Show,
}

/// Why a command was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The pod is being terminated.
    Stopped,
    /// The deadline of the command passed.
    Deadline,
}

/// Result of a command.
#[derive(Debug, Default)]
pub struct Finished {
    /// Exit code; 128 plus the signal number if a signal ended the command. `None` if the command did not start or still runs.
    pub code: Option<i32>,
    /// Standard output: complete for [`Show::Caller`], otherwise the redacted tail.
    pub stdout: Vec<u8>,
    /// Redacted tail of standard error.
    pub stderr: String,
    /// Why the command was stopped; `None` if it was not stopped. If cause and exit code are both `None`, the command was not started,
    /// because a stop of the run was already requested.
    pub cause: Option<Cause>,
}

/// Executes the commands of a run. Stops them on a stop request, redacts their output, and adds the output to the log tail.
#[derive(Clone)]
pub struct Commands {
    /// Descendant processes of the runner.
    pub processes: Arc<Processes>,
    /// Request to stop the run: SIGTERM or SIGINT to the runner.
    pub stop: Stop,
    /// Grace period: time between the stop request and the SIGKILL of the kubelet.
    pub grace: Duration,
    /// Redactor of the known secret values.
    pub redactor: Redactor,
    /// Tail of the output of all commands.
    pub tail: LogTail,
}

impl Commands {
    /// Executes a command and waits until it ends. If a [`StopPolicy::Graceful`] command exceeds the grace period, returns while the
    /// command continues to run.
    ///
    /// # Errors
    /// Fails if the program cannot be started.
    pub async fn run(&self, task: Task) -> std::io::Result<Finished> {
        if task.stop_policy != StopPolicy::Persistent && self.stop.requested_at().is_some() {
            return Ok(Finished::default());
        }
        let mut child = self.start(&task).await?;
        let pid = child.id();
        let stdout = child
            .stdout
            .take()
            .map(|pipe| self.pump(pipe, tokio::io::stdout(), task.show));
        let stderr = child.stderr.take().map(|pipe| match task.show {
            Show::Log => self.pump(pipe, tokio::io::stderr(), Show::Log),
            Show::Caller => self.pump(pipe, tokio::io::sink(), Show::Log),
        });
        let (code, cause) = self.wait(&mut child, &task).await?;
        if code.is_some() {
            self.processes.forget(pid);
        }
        let (stdout, stderr) = (collect(stdout).await, collect(stderr).await);
        Ok(Finished {
            code,
            stdout,
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
            cause,
        })
    }

    /// Starts the command. Retries on `ETXTBSY`: a child process that starts concurrently may have inherited the file descriptor with which
    /// the runner wrote the script.
    async fn start(&self, task: &Task) -> std::io::Result<Child> {
        for _ in 0..50 {
            match self.processes.start(&mut command(task)) {
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                other => return other,
            }
        }
        self.processes.start(&mut command(task))
    }

    fn pump<R, W>(&self, from: R, to: W, show: Show) -> JoinHandle<Vec<u8>>
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        match show {
            Show::Log => {
                let (redactor, tail) = (self.redactor.clone(), self.tail.clone());
                tokio::spawn(pump_to_log(from, to, redactor, tail))
            }
            Show::Caller => tokio::spawn(pump_to_caller(from)),
        }
    }

    async fn wait(
        &self,
        child: &mut Child,
        task: &Task,
    ) -> std::io::Result<(Option<i32>, Option<Cause>)> {
        let cause = tokio::select! {
            status = child.wait() => return Ok((Some(code(status?)), None)),
            cause = self.cause(task) => cause,
        };
        let end = self.end_of_patience(task.stop_policy);
        let scope = match task.show {
            Show::Log => Scope::Everything,
            Show::Caller => Scope::Below(child.id()),
        };
        let mut terminated = false;
        loop {
            self.processes.interrupt_engines(scope);
            if task.stop_policy == StopPolicy::Quick
                && !terminated
                && !self.processes.engine_lives(scope)
            {
                self.processes.terminate_group(child.id());
                terminated = true;
            }
            if let Ok(status) = tokio::time::timeout(TICK, child.wait()).await {
                return Ok((Some(code(status?)), Some(cause)));
            }
            if Instant::now() >= end {
                return self.give_up(child, task.stop_policy, scope, cause).await;
            }
        }
    }

    async fn cause(&self, task: &Task) -> Cause {
        let deadline = tokio::time::sleep_until(task.deadline.into());
        if task.stop_policy == StopPolicy::Persistent {
            deadline.await;
            return Cause::Deadline;
        }
        tokio::select! {
            _ = self.stop.requested() => Cause::Stopped,
            () = deadline => Cause::Deadline,
        }
    }

    fn end_of_patience(&self, stop_policy: StopPolicy) -> Instant {
        let now = Instant::now();
        match stop_policy {
            StopPolicy::Quick | StopPolicy::Persistent => now + QUICK_END,
            StopPolicy::Graceful => self.end_of_grace(),
        }
    }

    /// Returns the time at which commands must have ended: [`FOR_THE_REPORT`] before the end of the grace period. The grace period starts at
    /// the stop request, or now if no stop was requested.
    pub(crate) fn end_of_grace(&self) -> Instant {
        let from = self.stop.requested_at().unwrap_or_else(Instant::now);
        from + self.grace.saturating_sub(FOR_THE_REPORT)
    }

    /// Kills the command. Does not kill a [`StopPolicy::Graceful`] command: the kubelet kills the command with the pod.
    async fn give_up(
        &self,
        child: &mut Child,
        stop_policy: StopPolicy,
        scope: Scope,
        cause: Cause,
    ) -> std::io::Result<(Option<i32>, Option<Cause>)> {
        if stop_policy == StopPolicy::Graceful {
            return Ok((None, Some(cause)));
        }
        self.processes.kill(scope);
        Ok((Some(code(child.wait().await?)), Some(cause)))
    }
}

fn command(task: &Task) -> Command {
    let mut command = Command::new(&task.program);
    command
        .args(&task.arguments)
        .current_dir(&task.directory)
        .env_clear()
        .envs(&task.environment)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    command
}

fn code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

async fn collect(pump: Option<JoinHandle<Vec<u8>>>) -> Vec<u8> {
    let Some(pump) = pump else { return Vec::new() };
    match tokio::time::timeout(LAST_OUTPUT, pump).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) | Err(_) => Vec::new(),
    }
}

async fn pump_to_caller(mut from: impl AsyncRead + Unpin) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = from.read_to_end(&mut all).await;
    all
}

async fn pump_to_log(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    redactor: Redactor,
    printed: LogTail,
) -> Vec<u8> {
    let mut stream = redactor.stream();
    let mut buffer = vec![0; 16 * 1024];
    let mut tail = Vec::new();
    loop {
        let count = from.read(&mut buffer).await.unwrap_or(0);
        let clean = match buffer.get(..count) {
            Some(bytes) if count > 0 => stream.push(bytes),
            _ => stream.finish(),
        };
        // Ignores write errors: the engine must continue if the reader of the log stream has ended.
        let _ = to.write_all(&clean).await;
        let _ = to.flush().await;
        printed.push(&clean);
        tail.extend_from_slice(&clean);
        tail.drain(..tail.len().saturating_sub(TAIL));
        if count == 0 {
            return tail;
        }
    }
}
