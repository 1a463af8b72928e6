//! Runs one command of the engine or of the user: prints what it prints, redacted and at once,
//! and ends it the right way when the run must stop.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::layout::Vars;
use crate::processes::{Processes, Scope};
use crate::redact::Redactor;
use crate::signals::Stop;
use crate::tail::Tail;

/// How much of a stream is kept for the report.
const TAIL: usize = 64 * 1024;
/// How often the processes are looked at while they end.
const TICK: Duration = Duration::from_millis(100);
/// How long a command that changes nothing may take to end.
const QUICK_END: Duration = Duration::from_secs(15);
/// How long the rest of the output may take after a command has ended: something that it left
/// behind may hold the stream open.
const LAST_OUTPUT: Duration = Duration::from_secs(2);
/// What is kept of the grace period for the report.
const FOR_THE_REPORT: Duration = Duration::from_secs(20);

/// How a command is ended when the run must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It changes nothing: interrupted, and killed soon after.
    Quick,
    /// It may be changing things: each engine gets one SIGINT and all the time there is.
    Graceful,
    /// It saves what would be lost: it goes on although the run must stop.
    Persistent,
}

/// Where the output of a command goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// To the log, redacted.
    Log,
    /// Standard output to the caller, whole and unredacted; errors to nobody but the caller. Such
    /// a command may run beside another one, which is left alone when this one must end.
    Caller,
}

/// A command to run.
pub struct Task {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Its working directory.
    pub directory: PathBuf,
    /// Its whole environment.
    pub environment: Vars,
    /// How it is ended.
    pub ending: Ending,
    /// When it must have ended.
    pub deadline: Instant,
    /// Where its output goes.
    pub show: Show,
}

/// Why a command was asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The pod is being stopped.
    Stopped,
    /// The time limit passed.
    Deadline,
}

/// What came of a command.
#[derive(Debug)]
pub struct Finished {
    /// Its exit code, 128 and the signal's number if a signal ended it; `None` when it still runs.
    pub code: Option<i32>,
    /// Its standard output: all of it for [`Show::Caller`], the redacted tail else.
    pub stdout: Vec<u8>,
    /// The redacted tail of its standard error.
    pub stderr: String,
    /// Why it was asked to end, if it was.
    pub cause: Option<Cause>,
}

/// What all commands of a run share.
#[derive(Clone)]
pub struct Commands {
    /// The processes below the runner.
    pub processes: Arc<Processes>,
    /// What asks the run to stop.
    pub stop: Stop,
    /// How long the pod lives on after it was asked to stop.
    pub grace: Duration,
    /// The secrets that must not be printed.
    pub redactor: Redactor,
    /// The end of what was printed.
    pub tail: Tail,
}

impl Commands {
    /// Runs a command to its end.
    pub async fn run(&self, task: Task) -> std::io::Result<Finished> {
        if task.ending != Ending::Persistent && self.stop.asked_at().is_some() {
            return Ok(Finished::never_started());
        }
        let mut child = self.start(&task).await?;
        let pid = child.id();
        let stdout = child
            .stdout
            .take()
            .map(|it| self.pump(it, tokio::io::stdout(), task.show));
        let stderr = child.stderr.take().map(|it| match task.show {
            Show::Log => self.pump(it, tokio::io::stderr(), Show::Log),
            Show::Caller => self.pump(it, tokio::io::sink(), Show::Log),
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

    /// Starts the command. A script that was just written may be busy for a moment: another
    /// thread that is starting a process still has it open.
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
        let end = self.end_of_patience(task.ending);
        let scope = match task.show {
            Show::Log => Scope::Everything,
            Show::Caller => Scope::Below(child.id()),
        };
        let mut terminated = false;
        loop {
            self.processes.interrupt_engines(scope);
            if task.ending == Ending::Quick && !terminated && !self.processes.engine_lives(scope) {
                self.processes.terminate_group(child.id());
                terminated = true;
            }
            if let Ok(status) = tokio::time::timeout(TICK, child.wait()).await {
                return Ok((Some(code(status?)), Some(cause)));
            }
            if Instant::now() >= end {
                return self.give_up(child, task.ending, scope, cause).await;
            }
        }
    }

    async fn cause(&self, task: &Task) -> Cause {
        let deadline = tokio::time::sleep_until(task.deadline.into());
        if task.ending == Ending::Persistent {
            deadline.await;
            return Cause::Deadline;
        }
        tokio::select! {
            _ = self.stop.asked() => Cause::Stopped,
            () = deadline => Cause::Deadline,
        }
    }

    fn end_of_patience(&self, ending: Ending) -> Instant {
        let now = Instant::now();
        match ending {
            Ending::Quick | Ending::Persistent => now + QUICK_END,
            Ending::Graceful => self.end_of_grace(),
        }
    }

    /// When the report must be written, if the pod was asked to stop at the latest now.
    pub(crate) fn end_of_grace(&self) -> Instant {
        let from = self.stop.asked_at().unwrap_or_else(Instant::now);
        from + self.grace.saturating_sub(FOR_THE_REPORT)
    }

    /// What changes things is never killed by us: kubelet ends it with the pod.
    async fn give_up(
        &self,
        child: &mut Child,
        ending: Ending,
        scope: Scope,
        cause: Cause,
    ) -> std::io::Result<(Option<i32>, Option<Cause>)> {
        if ending == Ending::Graceful {
            return Ok((None, Some(cause)));
        }
        self.processes.kill(scope);
        Ok((Some(code(child.wait().await?)), Some(cause)))
    }
}

impl Finished {
    fn never_started() -> Self {
        Self {
            code: None,
            stdout: Vec::new(),
            stderr: String::new(),
            cause: Some(Cause::Stopped),
        }
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
    printed: Tail,
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
        // A log that nobody takes any more is no reason to stop the engine.
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
