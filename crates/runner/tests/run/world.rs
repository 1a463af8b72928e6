//! Test environment of the runner: a module, volumes, Secrets, and a process in the role of a pod for each run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use alustan_api::report::{FailureClass, RunReport, RunResult};
use alustan_api::run::{
    ApprovalInputs, ApprovedPlan, BackendInputs, EngineArguments, Inventory, ManagedState, Outputs,
    PROTOCOL, RunInputs, RunKind, RunPhase, RunProgress, RunRecord, RunSpec, ScriptTexts,
    StateLock, TimeLimits, Trigger, key,
};
use alustan_api::{Architecture, Mode};
use alustan_state::fake::FakeSecrets;
use alustan_state::store::Pointer;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use tempfile::TempDir;

use crate::api;

pub(crate) const RECORD: &str = "web-run";
pub(crate) const REPORT: &str = "web-report";
pub(crate) const KEY: &[u8] = b"0123456789abcdef0123456789abcdef";
/// Time limit of each wait in a test.
const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) struct World {
    pub(crate) directory: TempDir,
    pub(crate) secrets: Arc<FakeSecrets>,
    calls: api::Calls,
    /// Whether the API server refuses every other request.
    pub(crate) is_overloaded: Arc<AtomicBool>,
    pub(crate) inputs: RunInputs,
    pub(crate) vars: BTreeMap<String, String>,
    /// `spec.mode` of the resource.
    pub(crate) mode: Mode,
    /// Cause of the next runs.
    pub(crate) trigger: Trigger,
    /// Digest of the context in the run record.
    pub(crate) context: Option<String>,
    /// Pods of earlier runs that have certainly ended.
    pub(crate) earlier_pods: Vec<String>,
    /// User id of the pods: see [`as_user`]. Default: the user of the test.
    pub(crate) user: Option<u32>,
    number: i64,
}

/// Returns a command that executes `program` as `user` in group 0, as in a pod of OpenShift: without an entry in `/etc/passwd`, and without
/// capabilities. In the user namespace, the files of the test belong to `user`.
pub(crate) fn as_user(user: u32, program: &str) -> Command {
    let mut command = Command::new("unshare");
    let user = format!("--map-user={user}");
    command.args(["--user", &user, "--map-group=0", program]);
    command
}

/// Makes a folder read-only, for all users except root.
pub(crate) fn make_read_only(folder: &Path) {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o555)).unwrap();
}

/// Exit code, output and report of a finished run.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) report: Option<RunReport>,
}

impl World {
    /// Creates a test environment with a module of one file and a managed state.
    pub(crate) fn new(module: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for folder in ["module", "cache", "home", "bin"] {
            fs::create_dir(directory.path().join(folder)).unwrap();
        }
        fs::write(directory.path().join("module/main.tf"), module).unwrap();
        let secrets = Arc::new(FakeSecrets::new());
        let slots: Vec<String> = (0..3)
            .map(|slot| format!("web-state-slot-{slot}"))
            .collect();
        secrets.put("web-state", []);
        for slot in &slots {
            secrets.put(slot, []);
        }
        secrets.put(RECORD, []);
        let calls = api::Calls::default();
        let is_overloaded = Arc::new(AtomicBool::new(false));
        let address = api::serve(secrets.clone(), calls.clone(), is_overloaded.clone());
        let config = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             users: [{{name: u, user: {{}}}}]\n"
        );
        fs::write(directory.path().join("kubeconfig"), config).unwrap();
        let inputs = RunInputs {
            path: String::new(),
            variables: BTreeMap::new(),
            own_variables: BTreeSet::new(),
            strict_variables: false,
            var_files: Vec::new(),
            secret_variables: BTreeSet::new(),
            secret_environment: BTreeSet::new(),
            scripts: ScriptTexts::default(),
            wrapper: None,
            backend: BackendInputs {
                kind: Some("http".into()),
                write_block: true,
                config: BTreeMap::new(),
                environment: BTreeMap::new(),
                secret_config: BTreeMap::new(),
                bootstrap: None,
                workspace: None,
                managed: Some(ManagedState {
                    pointer: "web-state".into(),
                    slots,
                }),
            },
            timeouts: TimeLimits {
                plan: 120,
                apply: 120,
                destroy: 120,
            },
            engine_arguments: EngineArguments::default(),
            approval: ApprovalInputs::default(),
            adopt: false,
            migrate: None,
            engine_before: None,
            applied_before: false,
            plan_secret: None,
            environment: BTreeMap::new(),
            service_account: None,
        };
        Self {
            directory,
            secrets,
            calls,
            is_overloaded,
            inputs,
            vars: BTreeMap::new(),
            mode: Mode::Apply,
            trigger: Trigger::Created,
            context: None,
            earlier_pods: Vec::new(),
            user: None,
            number: 0,
        }
    }

    /// Creates a test environment like [`Self::new`], with the state in a file in the folder of the test (`local` backend).
    pub(crate) fn with_local_backend(module: &str) -> Self {
        let mut world = Self::new(module);
        world.inputs.backend.kind = Some("local".into());
        world.inputs.backend.managed = None;
        let path = world.path("local.tfstate").display().to_string();
        world
            .inputs
            .backend
            .config
            .insert("path".into(), path.into());
        world
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub(crate) fn write_module(&self, name: &str, text: &str) {
        let path = self.path("module").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Uses the module in the folder `path` for the next runs.
    pub(crate) fn use_module(&mut self, path: &Path) {
        self.vars
            .insert("ALUSTAN_MODULE_DIR".into(), path.display().to_string());
    }

    /// Adds a program to the front of the PATH of the next runs.
    pub(crate) fn program(&self, name: &str, text: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Records the engine commands of the next runs, for [`Self::engine_calls`].
    pub(crate) fn watch_engine(&self) {
        let log = self.path("calls");
        let note = format!("echo \"$1 $2\" >> {}", log.display());
        self.wrap_engine(&note);
    }

    /// Executes the shell command `script` before each engine command `command`.
    pub(crate) fn before_engine(&self, command: &str, script: &str) {
        self.wrap_engine(&format!("if [ \"$1\" = {command} ]; then {script}; fi"));
    }

    /// Executes the shell command `first` before each engine command.
    pub(crate) fn wrap_engine(&self, first: &str) {
        let engine = std::env::split_paths(&std::env::var_os("PATH").unwrap())
            .map(|folder| folder.join("terraform"))
            .find(|path| path.is_file())
            .unwrap();
        let engine = engine.display();
        self.program(
            "terraform",
            &format!("#!/bin/bash\n{first}\nexec {engine} \"$@\"\n"),
        );
    }

    /// Returns the sorted commands of the engine since the last call of this function.
    pub(crate) fn engine_calls(&self) -> Vec<String> {
        let calls = self.read("calls");
        let _ = fs::remove_file(self.path("calls"));
        let mut calls: Vec<String> = calls
            .lines()
            .map(|call| match call.split_once(' ') {
                Some((command @ ("apply" | "init" | "output" | "plan"), _)) => command.to_owned(),
                _ => call.to_owned(),
            })
            .collect();
        calls.sort();
        calls
    }

    /// Returns the requests to the API server since the last call of this function, in order.
    pub(crate) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    /// Approves the plan that waits for approval.
    pub(crate) fn approve(&mut self, report: &RunReport) {
        self.inputs.approval.approved = Some(ApprovedPlan {
            id: report.asks.as_ref().unwrap().id.clone(),
            run: report.number,
        });
    }

    /// Empties the Secret of the run record, as for a resource without runs.
    pub(crate) fn forget_record(&self) {
        self.secrets.put(RECORD, []);
    }

    /// Creates a gate: a named pipe. A script or a provisioner that reads the pipe is blocked until the test closes the pipe.
    pub(crate) fn gate(&self, name: &str) -> Gate {
        let path = self.path(name);
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        Gate { path }
    }

    /// Writes run record, inputs and report of the next run, as the controller does. Starts no pod.
    pub(crate) fn start(&mut self, kind: RunKind) {
        self.number += 1;
        let before = self.record();
        let run = RunSpec {
            artifact: None,
            cache: false,
            cache_claim: None,
            unpack: false,
            kind,
            trigger: self.trigger.clone(),
            job: format!("web-{kind}-{}", self.number),
            revision: None,
            commit: None,
            context: self.context.clone(),
            image: "image".into(),
            architecture: Architecture::own(),
            tag: "tag".into(),
            config_hash: "hash".into(),
            own_hash: "hash".into(),
            found: BTreeMap::new(),
            judged_by: String::new(),
            pod: String::new(),
            destroys: false,
            mode: self.mode,
            engine: None,
            trace_id: String::new(),
            protocol: PROTOCOL,
            started_at: Timestamp::now(),
        };
        let record = RunRecord {
            number: self.number,
            run: Some(run),
            attempted: before.attempted,
            attempted_before: before.attempted,
            begun: before.begun,
            begun_before: before.begun,
            lineage: before.lineage,
            state_address: before.state_address,
            own_backend: before.own_backend,
            earlier_pods: self.earlier_pods.clone(),
            ..RunRecord::default()
        };
        let report = self.secrets.get(REPORT).unwrap_or_default().data;
        let kept = [key::LEFTOVER, key::INVENTORY]
            .into_iter()
            .filter_map(|key| Some((key, report.get(key)?.clone())));
        let progress = [(key::PROGRESS, to_json(&RunProgress::of(&record)))];
        self.secrets.put(REPORT, progress.into_iter().chain(kept));
        let data = [
            (key::RECORD, to_json(&record)),
            (key::INPUTS, to_json(&self.inputs)),
            (key::KEY, KEY.to_vec()),
        ];
        self.secrets.put(RECORD, data);
    }

    /// Returns the log of run `number` in the report.
    pub(crate) fn kept_log(&self, number: i64) -> Option<String> {
        use std::io::Read;
        let snapshot = self.secrets.get(REPORT)?;
        let packed = snapshot.data.get(&key::log(number))?;
        let mut text = String::new();
        let mut unpacked = flate2::read::GzDecoder::new(packed.as_slice());
        unpacked.read_to_string(&mut text).unwrap();
        Some(text)
    }

    /// Returns the encrypted unsaved state in the run report.
    pub(crate) fn unsaved_state(&self) -> Option<Vec<u8>> {
        let snapshot = self.secrets.get(REPORT)?;
        snapshot.data.get(key::LEFTOVER).cloned()
    }

    /// Stores `state` as the unsaved state in the run report, as a run does.
    pub(crate) fn keep_unsaved(&self, state: &str) {
        let sealed = alustan_runner::state::unsaved::encrypt(state.as_bytes(), KEY).unwrap();
        let progress = to_json(&RunProgress::of(&self.record()));
        self.secrets
            .put(REPORT, [(key::PROGRESS, progress), (key::LEFTOVER, sealed)]);
    }

    /// Starts the pod of the current run, with new temporary volumes.
    pub(crate) fn pod(&self) -> Pod {
        self.pod_with_uid(&format!("uid-{}", self.number))
    }

    pub(crate) fn pod_with_uid(&self, uid: &str) -> Pod {
        let _ = fs::remove_dir_all(self.path("work"));
        fs::create_dir(self.path("work")).unwrap();
        let path = |name: &str| self.path(name).display().to_string();
        let search = std::env::var("PATH").unwrap();
        let runner = env!("CARGO_BIN_EXE_alustan-runner");
        let mut command = match self.user {
            Some(user) => as_user(user, runner),
            None => Command::new(runner),
        };
        command
            .arg("run")
            .env_clear()
            .env("PATH", format!("{}:{search}", path("bin")))
            .env("HOME", path("home"))
            .env("ALUSTAN_KUBECONFIG", path("kubeconfig"))
            .env("ALUSTAN_NAMESPACE", "team")
            .env("ALUSTAN_RECORD", RECORD)
            .env("ALUSTAN_RUN", self.number.to_string())
            .env("ALUSTAN_POD_UID", uid)
            .env("ALUSTAN_POD_NAME", format!("pod-of-{uid}"))
            .env("ALUSTAN_MODULE_DIR", path("module"))
            .env("ALUSTAN_PROVIDERS_DIR", path("providers"))
            .env("ALUSTAN_BASE_PROVIDERS_DIR", path("base"))
            .env("ALUSTAN_CACHE_DIR", path("cache"))
            .env("ALUSTAN_WORK_DIR", path("work"))
            .env("ALUSTAN_TERMINATION_LOG", path("termination-log"))
            .envs(&self.vars)
            .stdin(Stdio::null())
            .stdout(fs::File::create(self.path("stdout")).unwrap())
            .stderr(fs::File::create(self.path("stderr")).unwrap());
        Pod {
            child: command.spawn().unwrap(),
        }
    }

    /// Starts a run and waits for its end.
    pub(crate) fn run(&mut self, kind: RunKind) -> Ran {
        self.start(kind);
        let pod = self.pod();
        self.finish(pod)
    }

    pub(crate) fn finish(&self, mut pod: Pod) -> Ran {
        until("the pod ends", || pod.child.try_wait().unwrap().is_some());
        let code = pod.child.wait().unwrap().code().unwrap_or(-1);
        let (stdout, stderr) = (self.read("stdout"), self.read("stderr"));
        Ran {
            code,
            stdout,
            stderr,
            report: self.data(key::REPORT),
        }
    }

    /// Returns the run record. Merges the progress from the run report into the run record, as the controller does.
    pub(crate) fn record(&self) -> RunRecord {
        let own: RunRecord = self.data_of(RECORD, key::RECORD).unwrap_or_default();
        let reported: Option<RunProgress> = self.data(key::PROGRESS);
        match reported.filter(|reported| reported.number == own.number) {
            Some(reported) => merged(own, reported),
            None => own,
        }
    }

    pub(crate) fn outputs(&self) -> Option<Outputs> {
        self.data(key::OUTPUTS)
    }

    /// Removes the list of managed objects from the report.
    pub(crate) fn forget_inventory(&self) {
        self.secrets.put(REPORT, []);
    }

    /// Returns the list of managed objects in the report.
    pub(crate) fn inventory(&self) -> Option<Inventory> {
        let snapshot = self.secrets.get(REPORT)?;
        let packed = snapshot.data.get(key::INVENTORY)?;
        let unpacked = flate2::read::GzDecoder::new(packed.as_slice());
        Some(serde_json::from_reader(unpacked).unwrap())
    }

    pub(crate) fn pointer(&self) -> Pointer {
        let data = self.secrets.get("web-state").unwrap().data;
        data.get("pointer")
            .map(|bytes| serde_json::from_slice(bytes).unwrap())
            .unwrap_or_default()
    }

    fn data<T: serde::de::DeserializeOwned>(&self, key: &str) -> Option<T> {
        self.data_of(REPORT, key)
    }

    fn data_of<T: serde::de::DeserializeOwned>(&self, secret: &str, key: &str) -> Option<T> {
        let snapshot = self.secrets.get(secret)?;
        snapshot
            .data
            .get(key)
            .map(|bytes| serde_json::from_slice(bytes).unwrap())
    }

    /// Adds state slots up to `count`, as the controller does.
    pub(crate) fn grow_slots(&mut self, count: u32) {
        let managed = self.inputs.backend.managed.as_mut().unwrap();
        let there = u32::try_from(managed.slots.len()).unwrap();
        for slot in there..count {
            let name = format!("web-state-slot-{slot}");
            self.secrets.put(&name, []);
            managed.slots.push(name);
        }
        let mut data = self.secrets.get(RECORD).unwrap().data;
        data.insert(key::INPUTS.into(), to_json(&self.inputs));
        let known = [key::RECORD, key::INPUTS, key::KEY];
        self.secrets
            .put(RECORD, known.map(|key| (key, data[key].clone())));
    }

    /// Cancels the run, as the controller does.
    pub(crate) fn cancel(&self) {
        let mut record = self.record();
        record.cancel = true;
        self.write_record(&record);
    }

    /// Writes a state lock of `holder` to the run report.
    pub(crate) fn lock_by(&self, holder: &str) -> StateLock {
        let lock = StateLock {
            id: "of-somebody".into(),
            operation: "OperationTypeApply".into(),
            who: holder.into(),
            at: Timestamp::UNIX_EPOCH,
        };
        let mut record = self.record();
        record.lock = Some(lock.clone());
        self.write_record(&record);
        lock
    }

    pub(crate) fn write_record(&self, record: &RunRecord) {
        let mut data = self.secrets.get(RECORD).unwrap().data;
        data.insert(key::RECORD.into(), to_json(record));
        let known = [key::RECORD, key::INPUTS, key::KEY];
        self.secrets
            .put(RECORD, known.map(|key| (key, data[key].clone())));
        let progress = to_json(&RunProgress::of(record));
        self.secrets.put(REPORT, [(key::PROGRESS, progress)]);
    }

    pub(crate) fn wait_for_phase(&self, phase: RunPhase) {
        until("the run comes to its phase", || {
            self.record().phase == phase
        });
    }
}

fn to_json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

/// Merges the progress of a run into its run record, as the controller does.
fn merged(own: RunRecord, reported: RunProgress) -> RunRecord {
    let applies = own.run.as_ref().map(|run| run.kind) == Some(RunKind::Apply);
    let (begun, attempted) = (own.begun_before, own.attempted_before);
    RunRecord {
        phase: reported.phase,
        claimed_by: reported.claimed_by,
        cancel: reported.cancel,
        lock: reported.lock,
        slots_wanted: reported.slots_wanted,
        lineage: reported.lineage,
        state_address: reported.state_address,
        own_backend: reported.own_backend,
        begun: if reported.began { own.number } else { begun },
        attempted: if reported.began && applies {
            own.number
        } else {
            attempted
        },
        ..own
    }
}

/// Named pipe. A process that reads the pipe is blocked until the test closes the pipe.
pub(crate) struct Gate {
    path: PathBuf,
}

impl Gate {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until a process reads the named pipe. The process continues when the returned file is dropped.
    pub(crate) fn wait(&self) -> fs::File {
        let mut opened = None;
        until("somebody is at the gate", || {
            use std::os::unix::fs::OpenOptionsExt;
            opened = fs::OpenOptions::new()
                .write(true)
                .custom_flags(0o4000)
                .open(&self.path)
                .ok();
            opened.is_some()
        });
        opened.unwrap()
    }
}

/// Running process of the runner, in the role of a pod.
pub(crate) struct Pod {
    child: Child,
}

impl Pod {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the runner has child processes.
    pub(crate) fn has_children(&self) -> bool {
        let pid = self.pid();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        !children.unwrap().trim().is_empty()
    }

    /// Sends SIGTERM, as kubelet does.
    pub(crate) fn terminate(&self) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ran {
    #[track_caller]
    pub(crate) fn expect(&self, result: RunResult) -> &RunReport {
        let report = self
            .report
            .as_ref()
            .unwrap_or_else(|| panic!("no report\n{}", self.logs()));
        assert_eq!(
            report.result,
            result,
            "{:?}\n{}",
            report.failure,
            self.logs()
        );
        let failed = result == RunResult::Failed;
        assert_eq!(self.code, i32::from(failed), "exit code\n{}", self.logs());
        report
    }

    #[track_caller]
    pub(crate) fn expect_failure(&self, class: FailureClass, reason: &str) -> &str {
        let failure = self.expect(RunResult::Failed).failure.as_ref().unwrap();
        let actual = (failure.class, failure.reason.as_str());
        assert_eq!(
            actual,
            (class, reason),
            "{}\n{}",
            failure.message,
            self.logs()
        );
        &failure.message
    }

    pub(crate) fn logs(&self) -> String {
        format!("--- stdout\n{}\n--- stderr\n{}", self.stdout, self.stderr)
    }
}

/// Waits until `condition` is true. Panics after [`PATIENCE`].
#[track_caller]
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the value of an output as text.
pub(crate) fn text(outputs: &Outputs, name: &str) -> String {
    match &outputs[name].value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
