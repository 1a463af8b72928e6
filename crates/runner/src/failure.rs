//! Converts the output of the engine to a failure with class ([`FailureClass`]), reason and message.

use alustan_api::reason::ReasonText;
use alustan_api::report::{Failure, FailureClass, MAX_TEXT};
use alustan_api::{EngineName, Reason};
pub use alustan_state::error_text::{chain, place_in_json};

/// Step of a run, for the reason and the message of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStep {
    /// Creation of the bucket and the `DynamoDB` lock table of the state (`spec.backend.bootstrap`).
    Bootstrap,
    /// Engine command `init`.
    Init,
    /// Engine command `plan`.
    Plan,
    /// Engine command `apply`.
    Apply,
    /// Engine command `destroy`.
    Destroy,
    /// Engine command `output -json`.
    Output,
    /// Engine command `show` for a plan.
    Show,
    /// Engine command `state pull`.
    Pull,
    /// Engine command `force-unlock`.
    Unlock,
    /// Engine command `state push` for an unsaved state of an earlier run.
    Push,
    /// Copy of the state from its previous address to its new address.
    Migrate,
    /// Script of the user with this name in `spec.scripts`.
    Script(&'static str),
}

impl RunStep {
    fn reason(self) -> Reason {
        match self {
            Self::Bootstrap => Reason::BootstrapFailed,
            Self::Init => Reason::InitFailed,
            Self::Plan => Reason::PlanFailed,
            Self::Apply => Reason::ApplyFailed,
            Self::Destroy => Reason::DestroyFailed,
            Self::Output => Reason::OutputsUnreadable,
            Self::Show => Reason::PlanUnreadable,
            Self::Pull => Reason::StateUnavailable,
            Self::Unlock => Reason::StateLocked,
            Self::Push => Reason::StateNotRecovered,
            Self::Migrate => Reason::MigrationFailed,
            Self::Script(_) => Reason::ScriptFailed,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Bootstrap => "backend.bootstrap".to_owned(),
            Self::Init => "init".to_owned(),
            Self::Plan => "plan".to_owned(),
            Self::Apply => "apply".to_owned(),
            Self::Destroy => "destroy".to_owned(),
            Self::Output => "output".to_owned(),
            Self::Show => "show".to_owned(),
            Self::Pull => "state pull".to_owned(),
            Self::Unlock => "force-unlock".to_owned(),
            Self::Push => "state push".to_owned(),
            Self::Migrate => "state migration".to_owned(),
            Self::Script(name) => format!("scripts.{name}"),
        }
    }
}

/// Creates a failure. Cuts its message to [`MAX_TEXT`] characters.
pub fn failure(class: FailureClass, reason: impl ReasonText, message: impl AsRef<str>) -> Failure {
    Failure {
        class,
        reason: reason.into(),
        message: cut(message.as_ref(), MAX_TEXT),
    }
}

/// Creates a transient failure, for example of the network or the API server.
pub fn transient(reason: Reason, message: impl AsRef<str>) -> Failure {
    failure(FailureClass::Transient, reason, message)
}

/// Creates a failure that the user must resolve.
pub fn user(reason: Reason, message: impl AsRef<str>) -> Failure {
    failure(FailureClass::User, reason, message)
}

/// Creates a failure of the module, or of the objects that it manages.
pub fn module(reason: Reason, message: impl AsRef<str>) -> Failure {
    failure(FailureClass::Module, reason, message)
}

/// Returns the failure of a command with exit code `code` and error output `stderr`. Determines its class ([`FailureClass`]), reason and
/// message.
pub fn classify(step: RunStep, code: i32, stderr: &str) -> Failure {
    let text = tidy(stderr);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (class, reason) = judge(step, code, &words);
    let summary = format!("{} failed with exit code {code}", step.name());
    let details = useful(&text);
    let mut message = if details.is_empty() {
        summary
    } else {
        format!("{summary}: {details}")
    };
    if reason == Reason::ModulesUnavailable && class != FailureClass::Transient {
        message = format!(
            "{}; {PRIVATE_MODULES}",
            cut(&message, MAX_TEXT - PRIVATE_MODULES.len() - 2)
        );
    }
    if code == KILLED {
        message = format!(
            "{}{MEMORY_HINT}",
            cut(&message, MAX_TEXT - MEMORY_HINT.len())
        );
    }
    failure(class, reason, message)
}

/// Exit code of a process that SIGKILL ended: 128 plus the number of the signal.
const KILLED: i32 = 137;
/// Suffix of the message of a process that SIGKILL ended. If a container exceeds its memory limit, the kernel kills one or all of its processes
/// (<https://kubernetes.io/docs/tasks/configure-pod-container/assign-memory-resource/>).
const MEMORY_HINT: &str = "; the process was killed: if the container exceeded its memory limit, increase limits.memory in spec.runner.pod.resources, or for a build in spec.containerRegistry.builder.pod.resources";

fn judge(step: RunStep, code: i32, words: &str) -> (FailureClass, Reason) {
    let lower = words.to_lowercase();
    let says = |texts: &[&str]| texts.iter().any(|text| lower.contains(text));
    let unless_transient = |class| {
        if says(TRANSIENT) {
            FailureClass::Transient
        } else {
            class
        }
    };
    let refuses_version = || {
        let mut engines = EngineName::VARIANTS.iter();
        engines.any(|engine| lower.contains(engine.version_refusal()))
    };
    if says(NO_BACKEND) || says(LOCKED) && says(NO_TABLE) {
        (FailureClass::User, Reason::BackendMissing)
    } else if says(NO_SUCH_BACKEND) {
        (FailureClass::User, Reason::InvalidBackend)
    } else if says(LOCKED) {
        (FailureClass::Transient, Reason::StateLocked)
    } else if says(STALE) {
        (FailureClass::Transient, Reason::PlanStale)
    } else if says(MISSING_VALUE) {
        (FailureClass::User, Reason::VariablesInvalid)
    } else if step != RunStep::Apply && (says(INVALID) || refuses_version()) {
        (FailureClass::User, Reason::ModuleInvalid)
    } else if step == RunStep::Init && says(NO_ACCESS) {
        (FailureClass::Module, Reason::TerraformRegistryUnauthorized)
    } else if says(NO_PROVIDER) && says(NO_SUCH_PROVIDER) {
        (FailureClass::Module, Reason::ProviderNotFound)
    } else if says(NO_PROVIDER) {
        (
            unless_transient(FailureClass::User),
            Reason::ProvidersUnavailable,
        )
    } else if step == RunStep::Init && says(NO_MODULE) {
        (
            unless_transient(FailureClass::Module),
            Reason::ModulesUnavailable,
        )
    } else if says(TRANSIENT) {
        (FailureClass::Transient, step.reason())
    } else if matches!(step, RunStep::Script(_)) && matches!(code, 126 | 127) {
        (FailureClass::User, step.reason())
    } else {
        (FailureClass::Module, step.reason())
    }
}

/// Whether the engine refused to start `step` because of a lock, or because the state changed after the plan. Considers only the first
/// error: later errors may come from commands that the module executes.
pub fn is_refused(step: RunStep, stderr: &str) -> bool {
    let text = tidy(stderr).to_lowercase();
    let first = text.lines().find(|line| line.starts_with("error:"));
    let says = |first: &str| LOCKED.iter().chain(STALE).any(|text| first.contains(text));
    matches!(step, RunStep::Apply | RunStep::Destroy) && first.is_some_and(says)
}

const PRIVATE_MODULES: &str = "private modules are fetched with the credentials of spec.gitRepo: \
                               sshKeySecret (and its known_hosts) for ssh URLs, credentialsSecret \
                               for https URLs with the host of the repository";

/// Messages of the engine if a remote module cannot be fetched.
const NO_MODULE: &[&str] = &[
    "failed to download module",
    "could not download module",
    "error accessing remote module registry",
];

/// Messages of the engine if the bucket of the state does not exist.
const NO_BACKEND: &[&str] = &[
    "error: failed to get existing workspaces: s3 bucket",
    "querying cloud storage failed: storage: bucket doesn't exist",
];

/// Message of the engine if it does not support the backend type (`spec.backend.type`).
const NO_SUCH_BACKEND: &[&str] = &["unsupported backend type"];

/// Message of the engine if the DynamoDB lock table does not exist. Considered only together with a message in [`LOCKED`].
const NO_TABLE: &[&str] = &["resourcenotfoundexception"];

const LOCKED: &[&str] = &[
    "error acquiring the state lock",
    "state blob is already locked",
    // The following backends create and lock a missing state when an engine first reads the state. Therefore, even a plan can fail to lock
    // the state.
    "failed to lock azure state",
    "failed to lock cos state",
    "failed to lock oss state",
    "failed to lock s3 state",
    "failed to lock state in",
    ".tflock\" failed: googleapi: error 412",
];

/// Messages of the engine if the state changed after the plan. A new plan is required.
const STALE: &[&str] = &[
    "error: saved plan is stale",
    "error: saved plan does not match the given state",
];

/// Messages of the engine for a variable without value, or with an invalid value. `<value for var.NAME>` is the position of a syntax error in the
/// environment variable `TF_VAR_NAME`.
const MISSING_VALUE: &[&str] = &[
    "no value for required variable",
    "invalid value for variable",
    "invalid value for input variable",
    "variables not allowed",
    "<value for var.",
];

/// Messages of the engine for invalid configuration: a retry would fail with the same message. Ignored for [`RunStep::Apply`]: the plan
/// succeeded with the same configuration, so the message comes from another program, for example from an engine that a provisioner executes.
const INVALID: &[&str] = &[
    "configuration must be valid before",
    "error: unsupported argument",
    "error: unsupported block type",
    "error: unsupported attribute",
    "error: missing required argument",
    "error: reference to undeclared",
    "error: invalid reference",
    "error: invalid expression",
    "this character is not used within the language",
    "error: invalid block definition",
    "error: invalid resource type",
    "error: invalid data source",
    "error: invalid function",
    "error: call to unknown function",
    "error: unclosed configuration block",
    "error: unterminated",
    "error: argument or block definition required",
    "error: argument definition required",
    "error: missing newline after argument",
    "error: missing name for",
    "error: extraneous label",
    "error: duplicate resource",
    "error: duplicate data",
    "error: duplicate variable",
    "error: duplicate output",
    "error: duplicate local",
    "error: duplicate module",
    "error: duplicate provider",
    "error: duplicate required",
    "error: duplicate backend",
    "error: attribute redefined",
    "error: invalid default value for variable",
    "error: invalid variable name",
    "error: unreadable module directory",
    "error: module not found",
    "error: incorrect attribute value type",
    "error: cycle:",
];

const NO_PROVIDER: &[&str] = &[
    "failed to query available provider packages",
    "failed to install provider",
    "failed to resolve provider packages",
    "invalid provider registry host",
    "inconsistent dependency lock file",
];

/// Messages of the engine if a registry or a network mirror refuses a token, or requires one.
const NO_ACCESS: &[&str] = &[
    "rejected the given authentication credentials",
    "requires authentication credentials",
    "error looking up module versions: 401",
    "error looking up module versions: 403",
    "failed to request discovery document: 401",
    "failed to request discovery document: 403",
];

/// Messages of the engine if the provider registry does not have the provider or the required version
/// (<https://developer.hashicorp.com/terraform/internals/provider-registry-protocol>).
const NO_SUCH_PROVIDER: &[&str] = &[
    "does not have a provider named",
    "no available releases match the given constraints",
    "no versions are available for provider",
];

/// Messages for transient failures: network errors, and overloaded or unavailable services. Each entry is a phrase that is unlikely to occur
/// in the name of an object.
const TRANSIENT: &[&str] = &[
    "no such host",
    "could not resolve host",
    "temporary failure in name resolution",
    "server misbehaving",
    "connection refused",
    "connection reset",
    "connection timed out",
    "couldn't connect to server",
    "could not connect to",
    "network is unreachable",
    "no route to host",
    "broken pipe",
    "unexpected eof",
    "i/o timeout",
    "tls handshake timeout",
    "client.timeout exceeded",
    "context deadline exceeded",
    "request send failed",
    "net/http: request canceled",
    "timeout while waiting for state",
    "http error: 5",
    "statuscode: 500",
    "statuscode: 502",
    "statuscode: 503",
    "statuscode: 504",
    "statuscode: 429",
    "status code: 429",
    "status code: 500",
    "status code: 502",
    "status code: 503",
    "status code: 504",
    "500 internal server error",
    "502 bad gateway",
    "503 service unavailable",
    "504 gateway timeout",
    "429 too many requests",
    "error 429",
    "too many requests",
    "throttling:",
    "throttlingexception",
    "throttled",
    "rate exceeded",
    "rate limit exceeded",
    "ratelimitexceeded",
    "requestlimitexceeded",
    "please reduce your request rate",
    "slowdown:",
    "quota exceeded",
    "quotaexceeded",
    "exceeded quota",
    "over quota",
    "limitexceeded",
    "insufficientinstancecapacity",
    "service unavailable",
    "serviceunavailable",
    "no space left on device",
    "etcdserver: request timed out",
    "the server is currently unable to handle the request",
];

/// Removes colours, box-drawing characters, indentation and empty lines from the output of the engine.
pub fn tidy(text: &str) -> String {
    let plain = without_escapes(text);
    let lines = plain
        .lines()
        .map(|line| {
            line.trim_start_matches(['│', '╷', '╵', '┃', ' '])
                .trim_end()
        })
        .filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("\n")
}

/// Removes escape sequences (`ESC [ … letter`) and carriage returns.
pub fn without_escapes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match c {
            '\u{1b}' => {
                let _ = characters.find(char::is_ascii_alphabetic);
            }
            '\r' => {}
            other => plain.push(other),
        }
    }
    plain
}

/// End of the line that announces the errors of `init` in the configuration. It is cut at this place by the line width of the engine.
const ANNOUNCEMENT: &str = "encountered problems during initialisation, including problems";

/// Returns the output from the first line that starts with `Error:`, without an announcement of further errors. Without such a line, returns the
/// last 15 lines.
fn useful(text: &str) -> String {
    let from = |is_first: fn(&&str) -> bool| -> Vec<&str> {
        text.lines().skip_while(|line| !is_first(line)).collect()
    };
    let announced = from(|line| line.starts_with("Error:") && !line.ends_with(ANNOUNCEMENT));
    let errors = if announced.is_empty() {
        from(|line| line.starts_with("Error:"))
    } else {
        announced
    };
    if errors.is_empty() {
        let lines: Vec<&str> = text.lines().rev().take(15).collect();
        return lines.into_iter().rev().collect::<Vec<_>>().join("\n");
    }
    errors.join("\n")
}

/// Text that replaces the removed part of a message.
const GAP: &str = "\n[…]\n";

/// Returns the beginning of `text`: at most `limit` bytes, cut at a character boundary.
pub fn cut_to_bytes(text: &str, limit: usize) -> &str {
    text.get(..text.floor_char_boundary(limit)).unwrap_or(text)
}

/// Cuts a text to `limit` characters. Keeps its beginning and its end.
pub fn cut(text: &str, limit: usize) -> String {
    let length = text.chars().count();
    if length <= limit {
        return text.to_owned();
    }
    let room = limit.saturating_sub(GAP.chars().count());
    let head = room * 2 / 3;
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(length - (room - head)).collect();
    format!("{start}{GAP}{end}")
}

#[cfg(test)]
mod tests;
