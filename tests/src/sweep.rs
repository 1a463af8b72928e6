//! Searches for canaries in everything that one test, or all tests, may have written.
//!
//! A watch records the history of etcd: every version of every object of any kind, including deleted ones. Hard links keep files that are
//! deleted with their pod or volume. Command lines of processes in pods are polled.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{DirEntry, File};
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use memchr::memmem;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::task::JoinSet;

use alustan_api::labels::{MANAGED_BY, MANAGER};

use crate::Cluster;
use crate::canary::{Canaries, Searcher};
use crate::scene::until;

/// Interval of polls for short-lived files and processes, and of attempts to watch etcd after it was stopped.
const PERIOD: Duration = Duration::from_millis(200);
/// Maximum size of a kept file, in bytes. Larger files are programs, which are not searched.
const LARGE: u64 = 16 << 20;
/// Prefix of keys in etcd.
const REGISTRY: &str = "/registry/";
/// URL of etcd's watch, as reached on the node.
const ETCD: &str = "http://127.0.0.1:2379/v3/watch";
/// Folders of the dev cluster with the data of the registries.
const REGISTRIES: [&str; 2] = ["registry", "private-registry"];
/// Keys in Secrets whose values are public.
const PUBLIC: [&str; 6] = [
    "ca.crt",
    "tls.crt",
    "known_hosts",
    "username",
    "namespace",
    "TF_HTTP_USERNAME",
];
/// Protobuf bytes between the key of a label and the value [`MANAGER`]: field tag and length of the value.
const OUR_VALUE: [u8; 2] = [0x12, 7];
/// Tolerance for coarse file timestamps.
const COARSE: Duration = Duration::from_secs(2);

/// Keeps everything that is written to etcd, logs, pods and volumes after its start.
pub struct Sweep {
    cluster: Cluster,
    since: SystemTime,
    blobs: BTreeSet<OsString>,
    kept: TempDir,
    kept_of_pods: TempDir,
    collectors: JoinSet<()>,
}

/// Data that a [`Sweep`] has kept.
pub struct Swept {
    cluster: Cluster,
    since: SystemTime,
    /// Digests of the blobs in the registries at the start, such as layers of base images. These blobs contain no secret.
    blobs: BTreeSet<OsString>,
    kept: TempDir,
    kept_of_pods: TempDir,
}

/// Names of the canaries that were found, by place: key in etcd, file, …
pub type Found = BTreeMap<String, BTreeSet<String>>;

impl Sweep {
    /// Starts to keep data. Volumes and logs of pods are kept if the name of their folder contains `namespace`, which may be the prefix
    /// of several namespaces.
    pub async fn begin(cluster: &Cluster, namespace: &str) -> Self {
        let folder = &cluster.folder;
        // Hard links cannot cross mounts, and the kubelet mounts its own folder.
        let kept_in = |folder: PathBuf| {
            let kept = tempfile::Builder::new()
                .prefix("canary-")
                .tempdir_in(folder)
                .expect("a folder");
            std::fs::create_dir(kept.path().join(FILES)).expect("a folder");
            kept
        };
        let kept = kept_in(folder.clone());
        let kept_of_pods = kept_in(folder.join("kubelet"));
        let mut collectors = JoinSet::new();
        collectors.spawn(follow(kept.path().join(HISTORY)));
        let collector = Collector {
            folder: folder.clone(),
            namespace: namespace.to_owned(),
            kept: kept.path().to_owned(),
            kept_of_pods: kept_of_pods.path().to_owned(),
        };
        collectors.spawn(collector.collect());
        let sweep = Self {
            cluster: cluster.clone(),
            since: SystemTime::now() - COARSE,
            blobs: REGISTRIES
                .iter()
                .flat_map(|subfolder| files_below(&folder.join(subfolder)))
                .filter_map(|file| digest(&file))
                .collect(),
            collectors,
            kept,
            kept_of_pods,
        };
        sweep.seen().await;
        sweep
    }

    /// Waits until everything written so far is kept, and stops.
    pub async fn end(mut self) -> Swept {
        self.seen().await;
        if let Some(ended) = self.collectors.try_join_next() {
            ended.expect("a keeper that goes on");
        }
        self.collectors.shutdown().await;
        Swept {
            cluster: self.cluster,
            since: self.since,
            blobs: self.blobs,
            kept: self.kept,
            kept_of_pods: self.kept_of_pods,
        }
    }

    /// Waits until the history of etcd contains an object that this function creates.
    async fn seen(&self) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let name = format!("canary-{}", now.expect("a clock").as_nanos());
        let about = ["-n", "default", "configmap", &name];
        let key = STANDARD.encode(format!("{REGISTRY}configmaps/default/{name}"));
        // Creates and deletes the object until the history contains it: the watch misses objects that are created before the watch starts.
        until("etcd's history", async || {
            for verb in ["create", "delete"] {
                let arguments = [&[verb][..], &about].concat();
                self.cluster.run("kubectl", &arguments).await;
            }
            tokio::time::sleep(PERIOD).await;
            let file = File::open(self.kept.path().join(HISTORY)).ok()?;
            BufReader::new(file)
                .lines()
                .map_while(Result::ok)
                .any(|line| line.contains(&key))
                .then_some(())
        })
        .await;
    }
}

impl Swept {
    /// Returns the secret values in Secrets that clients other than the operator created or changed since the start.
    pub fn inputs(&self) -> Canaries {
        let mut canaries = Canaries::default();
        for (key, value) in self.history() {
            let Some(fields) = fields_of_secret(&key, &value) else {
                continue;
            };
            let ours = [MANAGED_BY.as_bytes(), &OUR_VALUE, MANAGER.as_bytes()].concat();
            if fields.iter().any(|(_, value)| has(value, &ours)) {
                continue;
            }
            for (name, value) in fields {
                if name.is_empty() || PUBLIC.contains(&name.as_str()) {
                    continue;
                }
                if let Ok(value) = String::from_utf8(value) {
                    canaries.all_of(&format!("{} {name}", place(&key)), &value);
                }
            }
        }
        canaries
    }

    /// Returns all places with canaries: keys of etcd, files, …
    pub async fn search(&self, canaries: &Canaries) -> Found {
        let searcher = canaries.searcher();
        let mut places = Found::new();
        let mut add = |place: String, bytes: &[u8]| note(&mut places, &searcher, place, bytes);
        for (key, value) in self.history() {
            match fields_of_secret(&key, &value) {
                Some(fields) => {
                    for (name, value) in fields {
                        add(format!("{} {name}", place(&key)), &value);
                    }
                }
                None => add(place(&key), &value),
            }
        }
        let metrics = self.metrics().await;
        assert!(metrics.contains("alustan_"), "{metrics}");
        add("metrics".to_owned(), metrics.as_bytes());
        let folder = &self.cluster.folder;
        let mut files = 0;
        for part in ["log", "kubelet/pods"].iter().chain(&REGISTRIES) {
            for file in files_below(&folder.join(part)) {
                // Skips files that were last written before the start, because they contain no canary. Skips projected values of a Secret,
                // because they are only in the memory of the pod.
                let known = digest(&file).is_some_and(|digest| self.blobs.contains(&digest));
                if known || !changed_after(&file, self.since) || is_projected(&file) {
                    continue;
                }
                let Ok(bytes) = std::fs::read(&file) else {
                    continue;
                };
                files += 1;
                add(shown(folder, &file), &bytes);
            }
        }
        for kept in [&self.kept, &self.kept_of_pods] {
            let entries = std::fs::read_dir(kept.path().join(FILES)).expect("a folder");
            for entry in entries.map(|entry| entry.expect("an entry").path()) {
                let name = std::fs::read_to_string(entry.join("name")).expect("a name");
                add(name, &std::fs::read(entry.join("file")).expect("a file"));
                files += 1;
            }
        }
        let kept = std::fs::read_dir(self.kept_of_pods.path().join(FILES)).expect("a folder");
        // The operator pod always has files in an emptyDir volume.
        assert!(kept.count() > 0, "no file of a pod was kept");
        let lines = std::fs::read(self.kept.path().join(ARGUMENTS)).expect("arguments");
        assert!(
            !lines.is_empty() && files > 0,
            "{files} files, {} bytes of arguments",
            lines.len()
        );
        add("arguments".to_owned(), &lines);
        places
    }

    /// Returns every version of every object since the start, with its key.
    fn history(&self) -> impl Iterator<Item = (String, Vec<u8>)> {
        let file = File::open(self.kept.path().join(HISTORY)).expect("the history");
        let events = BufReader::new(file)
            .lines()
            .map(|line| message(&line.expect("a line")))
            .flat_map(|mut message| match message["result"]["events"].take() {
                Value::Array(events) => events,
                _ => Vec::new(),
            });
        let part = |event: &Value, part: &str| {
            let text = event["kv"][part].as_str().unwrap_or_default();
            STANDARD.decode(text).expect("base64")
        };
        events.map(move |event| {
            let key = String::from_utf8_lossy(&part(&event, "key")).into_owned();
            (key, part(&event, "value"))
        })
    }

    async fn metrics(&self) -> String {
        let service = [
            "-n",
            "alustan-system",
            "get",
            "service",
            "alustan-controller",
            "-o",
            "jsonpath={.spec.clusterIP}",
        ];
        let address = self.cluster.run("kubectl", &service).await;
        let address = address.trim().parse().expect("an IP address");
        let url = format!("http://{}/metrics", SocketAddr::new(address, 80));
        let arguments = ["curl", "-sSf", &url];
        // The last test may have restarted the operator.
        until("the metrics of the operator", async || {
            let (good, output) = self
                .cluster
                .output("hack/cluster/in", &arguments, None)
                .await;
            good.then_some(output)
        })
        .await
    }
}

/// Appends the messages of etcd's watch to `file`. Continues after the last revision if etcd was stopped.
async fn follow(file: PathBuf) {
    let mut file = tokio::fs::File::create(file).await.expect("a file");
    let mut range =
        json!({"key": STANDARD.encode(REGISTRY), "range_end": STANDARD.encode("/registry0")});
    loop {
        let request = json!({"create_request": range}).to_string();
        let mut etcd = Command::new("hack/cluster/in")
            .current_dir(Cluster::root())
            .args(["curl", "-sSN", ETCD, "-d", &request])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("hack/cluster/in");
        let mut lines = tokio::io::BufReader::new(etcd.stdout.take().expect("a pipe")).lines();
        while let Ok(Some(mut line)) = lines.next_line().await {
            let revision = &message(&line)["result"]["header"]["revision"];
            if let Some(revision) = revision
                .as_str()
                .and_then(|revision| revision.parse::<u64>().ok())
            {
                range["start_revision"] = json!(revision + 1);
            }
            line.push('\n');
            file.write_all(line.as_bytes())
                .await
                .expect("write the history");
        }
        file.flush().await.expect("write the history");
        tokio::time::sleep(PERIOD).await;
    }
}

/// Parses a message of etcd's watch. Returns null for a truncated line, because the next watch repeats the events of that line.
fn message(line: &str) -> Value {
    let message: Value = serde_json::from_str(line).unwrap_or_default();
    let canceled = &message["result"]["canceled"];
    assert!(
        message["error"].is_null() && canceled != true,
        "etcd forgot a part of its history: {message}"
    );
    message
}

fn has(bytes: &[u8], word: &[u8]) -> bool {
    memmem::find(bytes, word).is_some()
}

fn place(key: &str) -> String {
    format!("etcd {}", key.trim_start_matches(REGISTRY))
}

/// Returns the fields of a Secret in etcd, each with a name. The name of an entry in `data` is its key; other fields have an empty name.
/// Returns `None` if the object is no Secret.
fn fields_of_secret(key: &str, value: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    /// Field numbers of `runtime.Unknown`, `Secret`, and an entry of its `data`.
    const RAW: u64 = 2;
    const DATA: u64 = 2;
    const VALUE: u64 = 2;
    let value = value.strip_prefix(b"k8s\0")?;
    key.strip_prefix(REGISTRY)?.strip_prefix("secrets/")?;
    let (_, secret) = messages(value)?.into_iter().find(|field| field.0 == RAW)?;
    let mut fields = Vec::new();
    for (number, bytes) in messages(secret)? {
        if number == DATA {
            let entry = messages(bytes)?;
            let name = String::from_utf8(entry.first()?.1.to_vec()).ok()?;
            let value = entry.iter().find(|field| field.0 == VALUE);
            fields.push((name, value.map_or(Vec::new(), |field| field.1.to_vec())));
        } else {
            fields.push((String::new(), bytes.to_vec()));
        }
    }
    Some(fields)
}

/// Returns the length-delimited fields of a protobuf message with their numbers, or `None` if it is invalid.
fn messages(mut bytes: &[u8]) -> Option<Vec<(u64, &[u8])>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        match tag & 7 {
            0 => drop(varint(&mut bytes)?),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let (field, rest) = bytes.split_at_checked(length)?;
                fields.push((tag >> 3, field));
                bytes = rest;
            }
            _ => return None,
        }
    }
    Some(fields)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn note(places: &mut Found, searcher: &Searcher, place: String, bytes: &[u8]) {
    let names = searcher.search(bytes);
    if !names.is_empty() {
        let names = names.into_iter().map(str::to_owned);
        places.entry(place).or_default().extend(names);
    }
}

/// File with the history of etcd: the messages of etcd's watch, as JSON lines.
const HISTORY: &str = "etcd.jsonl";
/// Folder of the `emptyDir` volumes in a pod's folder.
const EMPTY_DIRS: &str = "volumes/kubernetes.io~empty-dir";
/// Folder with kept files.
const FILES: &str = "files";
/// File with the command lines of processes in pods.
const ARGUMENTS: &str = "arguments";

struct Collector {
    folder: PathBuf,
    namespace: String,
    kept: PathBuf,
    kept_of_pods: PathBuf,
}

impl Collector {
    async fn collect(self) {
        let mut arguments = Arguments::default();
        let mut seen = HashSet::new();
        loop {
            self.link(&mut seen);
            if arguments.scan() {
                let all = arguments
                    .lines
                    .iter()
                    .map(Vec::as_slice)
                    .collect::<Vec<_>>();
                std::fs::write(self.kept.join(ARGUMENTS), all.join(&b'\n')).expect("a file");
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Creates a hard link to every file in the test's logs and volumes, and in every emptyDir except inputs of the engine and of git. Skips
    /// files in `seen`, which contains the linked files by inode and path.
    fn link(&self, seen: &mut HashSet<(u64, OsString)>) {
        let own = |path: &PathBuf| path.to_string_lossy().contains(&self.namespace);
        for (part, below, kept) in [
            ("log/pods", "", &self.kept),
            ("volumes", "", &self.kept),
            ("kubelet/pods", EMPTY_DIRS, &self.kept_of_pods),
        ] {
            let wanted = std::fs::read_dir(self.folder.join(part))
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path())
                .filter(|folder| !below.is_empty() || own(folder));
            for entry in wanted.flat_map(|folder| entries_below(&folder.join(below))) {
                let file = entry.path();
                let id = (entry.ino(), file.clone().into_os_string());
                if seen.contains(&id) {
                    continue;
                }
                // The file may have been deleted.
                let Ok(known) = entry.metadata() else {
                    continue;
                };
                if known.len() > LARGE {
                    continue;
                }
                let to = kept.join(FILES).join(seen.len().to_string());
                std::fs::create_dir(&to).expect("a folder");
                std::fs::write(to.join("name"), shown(&self.folder, &file)).expect("a file");
                match keep(&file, &to.join("file")) {
                    Ok(()) if to.join("file").is_file() => drop(seen.insert(id)),
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        panic!("keep {}: {error}", file.display())
                    }
                    // The file was deleted, or was replaced by a socket.
                    Ok(()) | Err(_) => std::fs::remove_dir_all(&to).expect("remove a folder"),
                }
            }
        }
    }
}

/// Creates a hard link to a file, so that later writes to the file are kept as well. Copies a file of another file system, such as a tmpfs.
fn keep(file: &Path, to: &Path) -> std::io::Result<()> {
    match std::fs::hard_link(file, to) {
        Err(error) if error.kind() == ErrorKind::CrossesDevices => {
            std::fs::copy(file, to).map(drop)
        }
        linked => linked,
    }
}

/// Command lines of processes in pods.
#[derive(Default)]
struct Arguments {
    lines: BTreeSet<Vec<u8>>,
    processes: HashMap<OsString, Process>,
}

/// Known state of a process.
#[derive(Clone, Copy)]
enum Process {
    InPod,
    /// Number of polls that found the process outside of pods.
    Outside(u32),
}

impl Arguments {
    /// Adds the current command lines. Returns whether some are new.
    fn scan(&mut self) -> bool {
        // Number of polls that check the cgroup of a process again: the first process of a container enters the pod's cgroup shortly after
        // its start.
        const OFTEN: u32 = 10;
        let before = self.lines.len();
        let earlier = std::mem::take(&mut self.processes);
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let read = |file: &str| std::fs::read(entry.path().join(file)).unwrap_or_default();
            let is_in_pod = || String::from_utf8_lossy(&read("cgroup")).contains("kubepods");
            let process = match earlier.get(&entry.file_name()) {
                Some(known @ (Process::InPod | Process::Outside(OFTEN..))) => *known,
                _ if is_in_pod() => Process::InPod,
                Some(Process::Outside(scans)) => Process::Outside(scans + 1),
                None => Process::Outside(1),
            };
            if matches!(process, Process::InPod) {
                self.lines.insert(read("cmdline"));
            }
            self.processes.insert(entry.file_name(), process);
        }
        self.lines.len() > before
    }
}

/// Returns whether a file of a pod is an input of the engine, in the workspace of a run, or an input of git, in the folder of one git call.
fn is_input(file: &Path) -> bool {
    let path = file.to_string_lossy();
    ["work/", "cache/repositories/calls/", "tmp/call-"]
        .iter()
        .any(|folder| path.contains(&format!("{EMPTY_DIRS}/{folder}")))
}

fn shown(folder: &Path, file: &Path) -> String {
    let file = file.strip_prefix(folder).unwrap_or(file);
    file.display().to_string()
}

/// Returns the digest of a registry's blob, whose file is `blobs/sha256/FIRST_TWO/DIGEST/data`.
fn digest(file: &Path) -> Option<OsString> {
    let folder = file.parent()?;
    let kind = folder.parent()?.parent()?.file_name()?;
    (kind == "sha256").then(|| folder.file_name().map(OsString::from))?
}

fn changed_after(file: &Path, since: SystemTime) -> bool {
    file.metadata()
        .and_then(|metadata| metadata.modified())
        .is_ok_and(|at| at >= since)
}

fn is_projected(file: &Path) -> bool {
    let volumes = ["kubernetes.io~secret", "kubernetes.io~projected"];
    let path = file.to_string_lossy();
    volumes.iter().any(|kind| path.contains(kind))
}

/// Returns the files below a folder, without symbolic links and inputs.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    entries_below(folder)
        .into_iter()
        .map(|entry| entry.path())
        .collect()
}

fn entries_below(folder: &Path) -> Vec<DirEntry> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            // `join("")` adds a trailing slash, so that `is_input` matches the folder of an input.
            Ok(kind) if kind.is_dir() && !is_input(&entry.path().join("")) => {
                files.extend(entries_below(&entry.path()));
            }
            Ok(kind) if kind.is_file() => files.push(entry),
            _ => {}
        }
    }
    files
}
