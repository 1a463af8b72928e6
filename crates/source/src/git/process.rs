//! Runs a child process in its own process group, with limits on time and output.

use std::{
    fs::File,
    io,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStdin, ChildStdout, Command},
};

/// Maximum size of stderr that is kept, in bytes. If stderr is larger, only its end is kept.
const STDERR_KEPT: usize = 64 * 1024;

/// Limits of a child process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Time after which the process group is killed.
    pub(crate) time: Duration,
    /// Maximum size of stdout, in bytes.
    pub(crate) stdout: u64,
    /// Maximum size of the data segment of each process (`ulimit -d`), in bytes.
    pub(crate) memory: u64,
}

/// Result of a child process that exited.
pub(crate) struct Finished<T = Vec<u8>> {
    pub(crate) status: ExitStatus,
    /// Result of the function that read stdout.
    pub(crate) stdout: T,
    /// End of stderr, converted to UTF-8.
    pub(crate) stderr: String,
}

/// Reasons for which a child process has no result.
#[derive(Debug)]
pub(crate) enum RunError {
    /// The program cannot be started.
    Spawn(io::Error),
    /// The process was killed after this time.
    Timeout(Duration),
    /// The process was killed because it wrote more than this number of bytes to stdout.
    TooMuchOutput(u64),
    /// A pipe of the process cannot be read or written, or its exit status cannot be read.
    Pipe(io::Error),
}

/// Shell script that limits the data segment to `$0` KiB and executes the program and arguments in `$@`. Child processes inherit the limit.
const LIMITED: &str = "ulimit -d \"$0\" && exec \"$@\"";

/// Exit status of a shell that does not find the program.
const NOT_FOUND: i32 = 127;

/// Returns a command that executes `program`. The data segment of each process has at most `memory` bytes.
pub(crate) fn limited(program: &str, memory: u64) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", LIMITED, &(memory >> 10).to_string(), program]);
    command
}

/// Runs `command` with `input` on stdin, and waits until the process exits. Kills the process group if `run` fails or the future of `run` is dropped.
pub(crate) async fn run(
    command: Command,
    input: Vec<u8>,
    bounds: Bounds,
) -> Result<Finished, RunError> {
    let read = |stdout| read_bounded(stdout, bounds.stdout);
    run_with(command, input, bounds.time, read).await
}

/// Runs `command` like [`run`]. `read` reads stdout on a blocking thread, and must limit the size of what it keeps.
pub(crate) async fn run_into<T: Send + 'static>(
    command: Command,
    input: Vec<u8>,
    time: Duration,
    read: impl FnOnce(File) -> T + Send + 'static,
) -> Result<Finished<T>, RunError> {
    let read = async |stdout: ChildStdout| {
        let stdout = File::from(stdout.into_owned_fd().map_err(RunError::Pipe)?);
        tokio::task::spawn_blocking(move || read(stdout))
            .await
            .map_err(|error| RunError::Pipe(io::Error::other(error)))
    };
    run_with(command, input, time, read).await
}

async fn run_with<T>(
    mut command: Command,
    input: Vec<u8>,
    time: Duration,
    read: impl AsyncFnOnce(ChildStdout) -> Result<T, RunError>,
) -> Result<Finished<T>, RunError> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.process_group(0).kill_on_drop(true);
    let mut child = command.spawn().map_err(RunError::Spawn)?;
    let group = Group::of(&child);
    let finished = tokio::time::timeout(time, finish(&mut child, input, read))
        .await
        .map_err(|_| RunError::Timeout(time))??;
    group.disarm();
    if finished.status.code() == Some(NOT_FOUND) {
        let error = io::Error::new(io::ErrorKind::NotFound, finished.stderr);
        return Err(RunError::Spawn(error));
    }
    Ok(finished)
}

async fn finish<T>(
    child: &mut Child,
    input: Vec<u8>,
    read: impl AsyncFnOnce(ChildStdout) -> Result<T, RunError>,
) -> Result<Finished<T>, RunError> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
        return Err(RunError::Pipe(io::Error::other("a pipe is missing")));
    };
    let (stdout, stderr, ()) =
        tokio::try_join!(read(stdout), read_end(stderr), feed(stdin, input))?;
    let status = child.wait().await.map_err(RunError::Pipe)?;
    Ok(Finished {
        status,
        stdout,
        stderr,
    })
}

async fn read_bounded(pipe: impl AsyncRead + Unpin, limit: u64) -> Result<Vec<u8>, RunError> {
    let mut bytes = Vec::new();
    pipe.take(limit.saturating_add(1))
        .read_to_end(&mut bytes)
        .await
        .map_err(RunError::Pipe)?;
    if bytes.len() as u64 > limit {
        return Err(RunError::TooMuchOutput(limit));
    }
    Ok(bytes)
}

async fn read_end(mut pipe: impl AsyncRead + Unpin) -> Result<String, RunError> {
    let mut kept = Vec::new();
    let mut chunk = vec![0; 8192];
    loop {
        let read = pipe.read(&mut chunk).await.map_err(RunError::Pipe)?;
        if read == 0 {
            return Ok(String::from_utf8_lossy(&kept).into_owned());
        }
        kept.extend_from_slice(chunk.get(..read).unwrap_or_default());
        kept.drain(..kept.len().saturating_sub(STDERR_KEPT));
    }
}

/// Writes `input` to stdin and closes stdin. Ignores a broken pipe: a child that exits before it has read all input reports the reason on
/// stderr.
async fn feed(mut pipe: ChildStdin, input: Vec<u8>) -> Result<(), RunError> {
    match pipe.write_all(&input).await {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(RunError::Pipe(error)),
        _ => Ok(()),
    }
}

/// Kills the process group of the child on drop, including children of git (ssh, git-remote-https, index-pack).
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        Self(
            child
                .id()
                .and_then(|id| i32::try_from(id).ok())
                .and_then(Pid::from_raw),
        )
    }

    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // Ignores an error: the processes of the group may have exited.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    const BOUNDS: Bounds = Bounds {
        time: Duration::from_secs(20),
        stdout: 1000,
        memory: 64 << 20,
    };

    #[tokio::test]
    async fn command_passes_input_output_and_status() {
        let done = run(shell("cat; echo why >&2; exit 3"), b"in".to_vec(), BOUNDS)
            .await
            .ok()
            .unwrap();
        assert_eq!(
            (
                done.status.code(),
                done.stdout.as_slice(),
                done.stderr.as_str()
            ),
            (Some(3), &b"in"[..], "why\n")
        );
    }

    #[tokio::test]
    async fn grandchild_that_holds_the_pipe_is_killed() {
        let started = Instant::now();
        let bounds = Bounds {
            time: Duration::from_millis(300),
            ..BOUNDS
        };
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; wait", mark.display());
        let end = run(shell(&script), Vec::new(), bounds).await;
        assert!(matches!(end, Err(RunError::Timeout(_))));
        assert!(started.elapsed() < Duration::from_secs(10));
        let pid: i32 = std::fs::read_to_string(mark)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        assert_ends(pid).await;
    }

    #[tokio::test]
    async fn dropped_call_kills_the_process_group() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("pid");
        let script = format!(
            "sleep 600 & echo $! > {}.new; mv {0}.new {0}; wait",
            mark.display()
        );
        let call = tokio::spawn(run(shell(&script), Vec::new(), BOUNDS));
        while !mark.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        call.abort();
        let pid: i32 = std::fs::read_to_string(mark)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        assert_ends(pid).await;
    }

    #[tokio::test]
    async fn endless_output_is_cut_and_killed() {
        let end = run(shell("yes"), Vec::new(), BOUNDS).await;
        assert!(matches!(end, Err(RunError::TooMuchOutput(1000))));
    }

    #[tokio::test]
    async fn endless_stderr_keeps_only_its_end() {
        let script =
            "i=0; while [ $i -lt 20000 ]; do echo 0123456789 >&2; i=$((i+1)); done; echo last >&2";
        let done = run(shell(script), Vec::new(), BOUNDS).await.ok().unwrap();
        assert!(done.stderr.len() <= STDERR_KEPT && done.stderr.ends_with("last\n"));
    }

    #[tokio::test]
    async fn memory_limit_applies_to_child_processes() {
        let takes = |bytes: u64| {
            let script = format!("head -c {bytes} /dev/zero | tail -n 1 | wc -c");
            let mut command = limited("sh", BOUNDS.memory);
            command.args(["-c", &script]);
            run(command, Vec::new(), BOUNDS)
        };
        let stdout = |done: Finished| String::from_utf8(done.stdout).unwrap();
        let small = takes(1 << 20).await.ok().unwrap();
        assert_eq!(stdout(small).trim(), (1 << 20).to_string());
        let large = takes(256 << 20).await.ok().unwrap();
        assert_ne!(stdout(large).trim(), (256 << 20).to_string());
    }

    #[tokio::test]
    async fn missing_program_is_a_spawn_error() {
        let done = run(limited("no-such-git", BOUNDS.memory), Vec::new(), BOUNDS).await;
        assert!(
            matches!(done, Err(RunError::Spawn(error)) if error.kind() == io::ErrorKind::NotFound)
        );
    }

    #[tokio::test]
    async fn unread_input_is_not_an_error() {
        let done = run(shell("exit 0"), vec![0; 1 << 20], BOUNDS)
            .await
            .ok()
            .unwrap();
        assert!(done.status.success());
    }

    /// Waits until a killed grandchild no longer exists, or is a zombie that init has not reaped.
    async fn assert_ends(pid: i32) {
        for _ in 0..1000 {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if stat.is_empty() || stat.contains(") Z ") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("process {pid} is still alive");
    }
}
