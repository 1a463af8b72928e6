//! Evaluates the CEL expressions of resources, each in a child process with a memory limit and a time limit. A process that exceeds a limit
//! is terminated; the operator continues.

use std::fmt::Display;
use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use alustan_cel::{Nothing, OBJECT};
use alustan_source::FairSemaphore;
use anyhow::{Context as _, Result};
use kube::api::DynamicObject;
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Command line argument with which the operator starts its executable as child process.
pub(crate) const ARGUMENT: &str = "evaluate";

/// Memory for one expression, its object and its result, in MiB.
const MEMORY_MIB: u64 = 64;

/// Address space for the stack of the evaluating thread, in MiB.
const STACK_MIB: u64 = 64;

/// Maximum number of concurrent child processes. Together they use at most 256 MiB, an eighth of the default memory limit of the container (2 GiB).
/// The kernel may kill the whole container if it exceeds the limit.
const MAX_PROCESSES: usize = 2;

/// Maximum CPU time of a child process, in seconds. `alustan_cel` has a lower limit, but checks it only when the expression reads
/// the object.
const CPU_SECONDS: u64 = 5;

/// Maximum run time of a child process, including its wait for a CPU.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of a request, in bytes of JSON. An object has at most 1.5 MiB.
const MAX_REQUEST_BYTES: u64 = 16 << 20;

/// Maximum size of a result, in bytes of JSON.
const MAX_RESULT_BYTES: u64 = 1 << 20;

/// Evaluates expressions in child processes.
pub(crate) struct Evaluator {
    /// Executable of the operator.
    program: PathBuf,
    /// Limits concurrent child processes, with fairness between namespaces.
    permits: Arc<FairSemaphore>,
}

impl Evaluator {
    /// Creates an evaluator whose child processes run `program`, the executable of the operator.
    pub(crate) fn new(program: PathBuf) -> Self {
        Self {
            program,
            permits: FairSemaphore::new(MAX_PROCESSES),
        }
    }

    /// Evaluates `expression` on `object`, for a resource in `namespace`.
    pub(crate) async fn evaluate(
        &self,
        namespace: &str,
        expression: &str,
        object: &DynamicObject,
    ) -> Result<Value, Nothing> {
        let _permit = self.permits.acquire(&Arc::from(namespace)).await;
        let request = serde_json::to_vec(&(expression, object)).map_err(|error| unknown(&error))?;
        let mut command = Command::new(&self.program);
        command.arg(ARGUMENT).env_clear();
        run(command, &request).await
    }
}

async fn run(mut command: Command, request: &[u8]) -> Result<Value, Nothing> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let child = command.spawn().map_err(|error| unknown(&error))?;
    let result = timeout(PROCESS_TIMEOUT, exchange(child, request)).await;
    result.unwrap_or(Err(Nothing::TooSlow))
}

async fn exchange(mut child: Child, request: &[u8]) -> Result<Value, Nothing> {
    if let Some(mut stdin) = child.stdin.take() {
        // Ignore a failed write: a process that ends before it has read the whole request reports the cause in its exit status.
        let _ = stdin.write_all(request).await;
    }
    let mut result = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let mut stdout = stdout.take(MAX_RESULT_BYTES);
        let read = stdout.read_to_end(&mut result).await;
        read.map_err(|error| unknown(&error))?;
        if stdout.limit() == 0 {
            return Err(invalid("the result exceeds 1 MiB of JSON"));
        }
    }
    let status = child.wait().await.map_err(|error| unknown(&error))?;
    if status.signal() == Some(Signal::XCPU.as_raw()) {
        return Err(Nothing::TooSlow);
    }
    if status.signal().is_some() {
        let message = format!("the evaluation exceeds {MEMORY_MIB} MiB of memory");
        return Err(invalid(message));
    }
    if !status.success() {
        return Err(unknown(&format!("evaluator process failed: {status}")));
    }
    serde_json::from_slice(&result).unwrap_or_else(|error| {
        let message = format!("the result is not valid JSON: {error}");
        Err(invalid(message))
    })
}

fn invalid(message: impl Into<String>) -> Nothing {
    Nothing::Invalid(message.into())
}

fn unknown(error: &impl Display) -> Nothing {
    Nothing::Unknown(error.to_string())
}

/// Main function of the child process. Evaluates the request on standard input, a JSON list of expression and object. Writes the result to
/// standard output as JSON.
pub(crate) fn evaluate_request() -> Result<()> {
    let limit = |maximum| Rlimit {
        current: Some(maximum),
        maximum: Some(maximum),
    };
    let memory = limit((MEMORY_MIB + STACK_MIB) << 20);
    setrlimit(Resource::Data, memory)
        .context("failed to limit the memory of the evaluator process")?;
    // The kernel sends SIGXCPU at the soft limit, and SIGKILL at the hard limit.
    let time = Rlimit {
        maximum: Some(CPU_SECONDS + 1),
        ..limit(CPU_SECONDS)
    };
    setrlimit(Resource::Cpu, time)
        .context("failed to limit the CPU time of the evaluator process")?;
    let mut request = Vec::new();
    let input = std::io::stdin().lock();
    let read = input.take(MAX_REQUEST_BYTES).read_to_end(&mut request);
    read.context("failed to read the request from standard input")?;
    let (expression, object): (String, DynamicObject) = serde_json::from_slice(&request)
        .context("failed to parse the request on standard input")?;
    drop(request);
    let result = alustan_cel::evaluate(&expression, OBJECT, &object);
    let result = serde_json::to_vec(&result).context("failed to serialize the result")?;
    let mut output = std::io::stdout().lock();
    output
        .write_all(&result)
        .context("failed to write the result to standard output")?;
    output
        .flush()
        .context("failed to write the result to standard output")
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::future::join_all;
    use futures::poll;
    use kube::core::{ApiResource, GroupVersionKind};

    use super::*;

    async fn shell(script: &str) -> Result<Value, Nothing> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, " ".repeat(1 << 20).as_bytes()).await
    }

    #[tokio::test]
    async fn exit_of_the_child_process_determines_the_result() {
        let read = "cat >/dev/null;";
        assert_eq!(
            shell(&format!(r#"{read} echo '{{"Ok":[1]}}'"#)).await,
            Ok(serde_json::json!([1]))
        );
        let missing = Nothing::Missing("No such key: a".to_owned());
        assert_eq!(
            shell(&format!(
                r#"{read} echo '{{"Err":{{"Missing":"No such key: a"}}}}'"#
            ))
            .await,
            Err(missing)
        );
        let large = Nothing::Invalid("the evaluation exceeds 64 MiB of memory".to_owned());
        assert_eq!(shell("kill -KILL $$").await, Err(large));
        assert_eq!(shell("kill -XCPU $$").await, Err(Nothing::TooSlow));
        let failed = shell(&format!("{read} exit 3")).await;
        assert!(matches!(failed, Err(Nothing::Unknown(_))), "{failed:?}");
        let endless = shell(&format!("{read} yes")).await;
        assert!(endless.is_err(), "{endless:?}");
        let deep = format!("{{\"Ok\":{}{}}}", "[".repeat(200), "]".repeat(200));
        let deep = shell(&format!("{read} echo '{deep}'")).await;
        assert!(matches!(deep, Err(Nothing::Invalid(_))), "{deep:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn child_process_that_does_not_end_times_out() {
        assert_eq!(shell("exec sleep 60").await, Err(Nothing::TooSlow));
    }

    #[tokio::test]
    async fn expressions_of_one_namespace_do_not_delay_another() {
        let evaluator = Evaluator::new("true".into());
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
        let object = DynamicObject::new("web", &kind);
        let busy = Arc::from("busy");
        let mut held = join_all((0..MAX_PROCESSES).map(|_| evaluator.permits.acquire(&busy))).await;
        let mut waiting = pin!(evaluator.permits.acquire(&busy));
        assert!(poll!(&mut waiting).is_pending());
        let mut team = pin!(evaluator.evaluate("team", "true", &object));
        assert!(poll!(&mut team).is_pending());
        held.pop();
        let done = timeout(PROCESS_TIMEOUT, team).await.unwrap();
        assert!(matches!(done, Err(Nothing::Invalid(_))), "{done:?}");
    }
}
