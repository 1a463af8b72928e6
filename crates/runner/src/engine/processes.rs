//! Descendant processes of the runner: child processes, the engine processes that scripts start, and orphaned processes, which the runner
//! adopts as a subreaper (prctl(2)).

use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use alustan_api::EngineName;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, set_child_subreaper, wait,
    waitpid,
};
use tokio::process::{Child, Command};

/// Process, from `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    pid: i32,
    parent: i32,
    zombie: bool,
    /// Start time in clock ticks since boot. Pid and start time together identify a process uniquely.
    started: u64,
}

/// Set of processes to which an operation applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All descendants of the runner.
    Everything,
    /// The process with this pid and all its descendants. No process if the pid is `None`.
    Below(Option<u32>),
}

#[derive(Default)]
struct Known {
    own: BTreeSet<i32>,
    interrupted: BTreeSet<(i32, u64)>,
}

/// Descendant processes of the runner: starts, interrupts, kills and reaps them.
#[derive(Default)]
pub struct Processes {
    known: Mutex<Known>,
}

impl Processes {
    /// Makes this process the parent of all orphaned descendants. The kernel makes a process with PID 1 the parent even without this call.
    pub fn adopt_orphans() -> Self {
        if let Err(error) = set_child_subreaper(Some(getpid())) {
            crate::log!("failed to become the subreaper of orphaned processes: {error}");
        }
        Self::default()
    }

    /// Starts a process for which the caller waits: [`Self::reap`] skips the process until [`Self::forget`] is called.
    pub fn start(&self, command: &mut Command) -> std::io::Result<Child> {
        let mut known = self.known();
        let child = command.spawn()?;
        known
            .own
            .extend(child.id().and_then(|id| i32::try_from(id).ok()));
        Ok(child)
    }

    /// Lets [`Self::reap`] reap `pid` again. Called after the caller has waited for the process, because the kernel may reuse the pid.
    pub fn forget(&self, pid: Option<u32>) {
        if let Some(pid) = pid.and_then(|pid| i32::try_from(pid).ok()) {
            self.known().own.remove(&pid);
        }
    }

    /// Waits for orphans that have ended, so that they do not remain zombies.
    pub fn reap(&self) {
        let known = self.known();
        let me = getpid().as_raw_nonzero().get();
        for process in all_processes() {
            if process.zombie && process.parent == me && !known.own.contains(&process.pid) {
                let _ =
                    Pid::from_raw(process.pid).map(|pid| waitpid(Some(pid), WaitOptions::NOHANG));
            }
        }
    }

    /// Whether an engine process is running in `scope`.
    pub fn engine_lives(&self, scope: Scope) -> bool {
        !engines(scope).is_empty()
    }

    /// Sends SIGINT to each engine in `scope`, once per process: on a second SIGINT, an engine aborts immediately.
    pub fn interrupt_engines(&self, scope: Scope) {
        let mut known = self.known();
        for engine in engines(scope) {
            if known.interrupted.insert((engine.pid, engine.started)) {
                crate::log!("sending SIGINT to the engine (pid {})", engine.pid);
                send(engine.pid, Signal::INT);
            }
        }
    }

    /// Sends SIGTERM to the process group of `leader`.
    pub fn terminate_group(&self, leader: Option<u32>) {
        let _ = leader
            .and_then(|pid| i32::try_from(pid).ok())
            .and_then(Pid::from_raw)
            .map(|pid| kill_process_group(pid, Signal::TERM));
    }

    /// Sends SIGKILL to each process in `scope`.
    pub fn kill(&self, scope: Scope) {
        for process in in_scope(scope) {
            send(process.pid, Signal::KILL);
        }
    }

    /// Kills all descendants and waits until they have ended, at most for `patience`. All commands must have ended before the call. Returns
    /// whether the runner has no child process left. In that case, the runner has no descendants, because orphans become children of the
    /// runner.
    pub async fn end_all(&self, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        loop {
            self.kill(Scope::Everything);
            loop {
                match wait(WaitOptions::NOHANG) {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => return true,
                }
            }
            if Instant::now() >= end {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock()
    }
}

fn send(pid: i32, signal: Signal) {
    let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, signal));
}

fn engines(scope: Scope) -> Vec<Process> {
    in_scope(scope)
        .into_iter()
        .filter(|process| !process.zombie && is_engine(process.pid))
        .collect()
}

fn is_engine(pid: i32) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    program
        .file_name()
        .and_then(|name| name.to_str())
        .is_some_and(is_engine_name)
}

/// Whether `name` is the name of the program of an engine, optionally with a version. The name of a provider, for example `terraform-provider-aws`, does
/// not match.
fn is_engine_name(name: &str) -> bool {
    let name = name.strip_suffix(" (deleted)").unwrap_or(name);
    EngineName::VARIANTS
        .iter()
        .filter_map(|engine| name.strip_prefix(engine.program()))
        .any(|rest| {
            let version = rest.trim_start_matches(['-', '_']).trim_start_matches('v');
            version.chars().all(|c| c.is_ascii_digit() || c == '.')
        })
}

fn in_scope(scope: Scope) -> Vec<Process> {
    let all = all_processes();
    match scope {
        Scope::Everything => below(getpid().as_raw_nonzero().get(), all),
        Scope::Below(None) => Vec::new(),
        Scope::Below(Some(pid)) => {
            let pid = i32::try_from(pid).unwrap_or_default();
            let own = all.iter().find(|process| process.pid == pid).cloned();
            own.into_iter().chain(below(pid, all)).collect()
        }
    }
}

/// Returns all descendants of the process `root`.
fn below(root: i32, all: Vec<Process>) -> Vec<Process> {
    let mut children: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    for process in all {
        children.entry(process.parent).or_default().push(process);
    }
    let mut processes = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for process in children.remove(&parent).unwrap_or_default() {
            parents.push(process.pid);
            processes.push(process);
        }
    }
    processes
}

fn all_processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(read_process).collect()
}

fn read_process(pid: i32) -> Option<Process> {
    parse_stat(
        pid,
        &fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?,
    )
}

/// Parses `pid (name) state parent … start …`, see proc(5). The name may contain any characters.
fn parse_stat(pid: i32, stat: &str) -> Option<Process> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Process {
        pid,
        zombie: matches!(*fields.first()?, "Z" | "X"),
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("terraform", true)]
    #[case("tofu", true)]
    #[case("terraform-1.11.4", true)]
    #[case("tofu_v1.9.0", true)]
    #[case("terraform (deleted)", true)]
    #[case("terraform-provider-aws_v5.0.0_x5", false)]
    #[case("terragrunt", false)]
    #[case("bash", false)]
    fn engine_processes_are_detected_by_program_name(#[case] name: &str, #[case] engine: bool) {
        assert_eq!(is_engine_name(name), engine);
    }

    #[test]
    fn process_name_may_contain_spaces_and_parentheses() {
        let stat = "42 (a) Z 1) b) S 7 42 42 0 -1 1 2 3 4 5 6 7 8 9 20 0 1 0 12345 1000";
        let wanted = Process {
            pid: 42,
            parent: 7,
            zombie: false,
            started: 12345,
        };
        assert_eq!(parse_stat(42, stat), Some(wanted));
    }
}
