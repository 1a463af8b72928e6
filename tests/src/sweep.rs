//! Looks for canaries wherever something of a scene may have been written down.
//!
//! etcd's history is read from its own watch, so that no version of any object of any kind is
//! missed, deleted ones neither. Files that go with their pod or volume are kept by a hard link, and
//! command lines of the pods' processes by looking often.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::canary::{Canaries, Searcher};
use crate::{Cluster, Scene};

/// How often it is looked for files and processes that go soon.
const PERIOD: Duration = Duration::from_millis(100);
/// What keys of etcd begin with.
const REGISTRY: &str = "/registry/";
/// Where etcd answers, for who is on the node.
const ETCD: &str = "http://127.0.0.1:2379/v3/watch";
/// Clocks of files are coarse.
const COARSE: Duration = Duration::from_secs(2);

/// Keeps what is written from now on.
pub struct Sweep {
    scene: Arc<Scene>,
    since: SystemTime,
    kept: TempDir,
    keeper: JoinHandle<()>,
    etcd: Child,
}

/// Places with the canaries that were found there.
pub type Found = BTreeMap<String, BTreeSet<String>>;

impl Sweep {
    /// Begins.
    pub async fn begin(scene: &Arc<Scene>) -> Self {
        let folder = &scene.cluster.folder;
        // Hard links do not leave a file system.
        let kept = tempfile::Builder::new()
            .prefix("canary-")
            .tempdir_in(folder)
            .expect("a folder");
        let range = json!({"create_request": {
            "key": STANDARD.encode(REGISTRY), "range_end": STANDARD.encode("/registry0"),
        }});
        let file = std::fs::File::create(kept.path().join(HISTORY)).expect("a file");
        let mut etcd = Command::new("hack/cluster/in");
        let etcd = etcd
            .current_dir(Cluster::root())
            .args(["curl", "-sSN", ETCD, "-d", &range.to_string()])
            .stdin(Stdio::null())
            .stdout(file)
            .kill_on_drop(true)
            .spawn()
            .expect("hack/cluster/in");
        let keeper = Keeper {
            folder: folder.clone(),
            namespace: scene.namespace.clone(),
            kept: kept.path().to_owned(),
        };
        let sweep = Self {
            scene: scene.clone(),
            since: SystemTime::now() - COARSE,
            kept,
            keeper: tokio::spawn(keeper.keep()),
            etcd,
        };
        sweep.seen("canary-begin").await;
        sweep
    }

    /// Everywhere that canaries were found: keys of etcd, files, …
    pub async fn end(mut self, canaries: &Canaries) -> Found {
        self.seen("canary-end").await;
        self.keeper.abort();
        // It has nothing more to tell.
        let _ = self.etcd.kill().await;
        let searcher = canaries.searcher();
        let mut found = Found::new();
        let mut add = |place: String, bytes: &[u8]| note(&mut found, &searcher, place, bytes);
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
        let folder = &self.scene.cluster.folder;
        let mut files = 0;
        for part in ["log", "registry", "private-registry", "kubelet/pods"] {
            for file in files_below(&folder.join(part)) {
                // Nothing that was last written before can hold one. What a pod gets from a Secret
                // is in its memory alone.
                if !changed_after(&file, self.since) || is_projected(&file) {
                    continue;
                }
                let Ok(bytes) = std::fs::read(&file) else {
                    continue;
                };
                files += 1;
                add(shown(folder, &file), &bytes);
            }
        }
        let kept = std::fs::read_dir(self.kept.path().join(FILES)).expect("a folder");
        for entry in kept.map(|entry| entry.expect("an entry").path()) {
            let name = std::fs::read_to_string(entry.join("name")).expect("a name");
            add(name, &std::fs::read(entry.join("file")).expect("a file"));
            files += 1;
        }
        let lines = std::fs::read(self.kept.path().join(ARGUMENTS)).expect("arguments");
        assert!(
            !lines.is_empty() && files > 20,
            "{files} files, {} bytes of arguments",
            lines.len()
        );
        add("arguments".to_owned(), &lines);
        found
    }

    /// Waits until the history has an object that is made now.
    async fn seen(&self, name: &str) {
        let key = format!("{REGISTRY}configmaps/{}/{name}", self.scene.namespace);
        self.scene
            .until("etcd's history", async || {
                // What does not change is not written.
                let now = format!("{:?}", SystemTime::now());
                self.scene.config_map(name, &[("at", &now)]).await;
                let told = std::fs::read_to_string(self.kept.path().join(HISTORY)).ok()?;
                told.contains(&STANDARD.encode(&key)).then_some(())
            })
            .await;
    }

    /// Every version of every object since the beginning, by its key.
    fn history(&self) -> Vec<(String, Vec<u8>)> {
        let text = std::fs::read_to_string(self.kept.path().join(HISTORY)).expect("the history");
        let messages = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let events = messages.flat_map(|message: Value| {
            assert!(message["error"].is_null(), "{message}");
            let events = message["result"]["events"].as_array().cloned();
            events.unwrap_or_default()
        });
        let part = |event: &Value, part: &str| {
            let text = event["kv"][part].as_str().unwrap_or_default();
            STANDARD.decode(text).expect("base64")
        };
        let each = events.map(|event| {
            let key = String::from_utf8_lossy(&part(&event, "key")).into_owned();
            (key, part(&event, "value"))
        });
        each.collect()
    }

    async fn metrics(&self) -> String {
        let service = "jsonpath={.spec.clusterIP}";
        let service = ["get", "service", "alustan-controller", "-o", service];
        let service = [&["-n", "alustan-system"], &service[..]].concat();
        let address = self.scene.cluster.run("kubectl", &service).await;
        let url = format!("http://{}/metrics", address.trim());
        let arguments = ["curl", "-sSf", &url];
        self.scene.cluster.run("hack/cluster/in", &arguments).await
    }
}

impl Drop for Sweep {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

fn place(key: &str) -> String {
    format!("etcd {}", key.trim_start_matches(REGISTRY))
}

/// Everything in a Secret as etcd has it, by the key of its data; what is no data has no key. None
/// if it is no Secret.
fn fields_of_secret(key: &str, value: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    /// Fields of `runtime.Unknown`, `Secret`, and of an entry of its `data`.
    const RAW: u64 = 2;
    const DATA: u64 = 2;
    const VALUE: u64 = 2;
    let value = value.strip_prefix(b"k8s\0")?;
    key.strip_prefix(REGISTRY)?.strip_prefix("secrets/")?;
    let (_, secret) = messages(value)?.into_iter().find(|it| it.0 == RAW)?;
    let mut fields = Vec::new();
    for (number, bytes) in messages(secret)? {
        if number == DATA {
            let entry = messages(bytes)?;
            let name = String::from_utf8(entry.first()?.1.to_vec()).ok()?;
            let value = entry.iter().find(|it| it.0 == VALUE);
            fields.push((name, value.map_or(Vec::new(), |it| it.1.to_vec())));
        } else {
            fields.push((String::new(), bytes.to_vec()));
        }
    }
    Some(fields)
}

/// The fields of a message of protobuf that have a length, by their numbers. None if it is none.
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

fn note(found: &mut Found, searcher: &Searcher, place: String, bytes: &[u8]) {
    let names = searcher.search(bytes);
    if !names.is_empty() {
        let names = names.into_iter().map(str::to_owned);
        found.entry(place).or_default().extend(names);
    }
}

/// The history of etcd, as its gateway tells it.
const HISTORY: &str = "etcd.jsonl";
/// Files that may be gone.
const FILES: &str = "files";
/// Command lines.
const ARGUMENTS: &str = "arguments";

struct Keeper {
    folder: PathBuf,
    namespace: String,
    kept: PathBuf,
}

impl Keeper {
    async fn keep(self) {
        let mut lines = BTreeSet::new();
        std::fs::create_dir(self.kept.join(FILES)).expect("a folder");
        loop {
            self.link();
            if arguments(&mut lines) {
                let all = lines.iter().map(Vec::as_slice).collect::<Vec<_>>();
                std::fs::write(self.kept.join(ARGUMENTS), all.join(&b'\n')).expect("a file");
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Keeps every file of the scene's volumes and logs, and of every pod's own folders.
    fn link(&self) {
        let own = |it: &PathBuf| it.to_string_lossy().contains(&self.namespace);
        for (part, below) in [
            ("log/pods", ""),
            ("volumes", ""),
            ("kubelet/pods", "volumes/kubernetes.io~empty-dir"),
        ] {
            let folders = std::fs::read_dir(self.folder.join(part)).into_iter();
            let folders = folders.flatten().flatten().map(|entry| entry.path());
            let wanted = folders.filter(|it| !below.is_empty() || own(it));
            for file in wanted.flat_map(|folder| files_below(&folder.join(below))) {
                // It may have just gone.
                let Ok(known) = std::fs::symlink_metadata(&file) else {
                    continue;
                };
                let to = self.kept.join(FILES).join(known.ino().to_string());
                if std::fs::create_dir(&to).is_ok() {
                    std::fs::write(to.join("name"), shown(&self.folder, &file)).expect("a file");
                    if std::fs::hard_link(&file, to.join("file")).is_err() {
                        std::fs::remove_dir_all(&to).expect("remove a folder");
                    }
                }
            }
        }
    }
}

/// Adds the command lines of processes in pods; whether there are new ones.
fn arguments(lines: &mut BTreeSet<Vec<u8>>) -> bool {
    let before = lines.len();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let read = |file: &str| std::fs::read(entry.path().join(file)).unwrap_or_default();
        if String::from_utf8_lossy(&read("cgroup")).contains("kubepods") {
            lines.insert(read("cmdline"));
        }
    }
    lines.len() > before
}

fn shown(folder: &Path, file: &Path) -> String {
    let file = file.strip_prefix(folder).unwrap_or(file);
    file.display().to_string()
}

fn changed_after(file: &Path, since: SystemTime) -> bool {
    let changed = file.metadata().and_then(|it| it.modified());
    changed.is_ok_and(|at| at >= since)
}

fn is_projected(file: &Path) -> bool {
    let volumes = ["kubernetes.io~secret", "kubernetes.io~projected"];
    let path = file.to_string_lossy();
    volumes.iter().any(|kind| path.contains(kind))
}

/// The files below a folder that are no links.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files.extend(files_below(&entry.path())),
            Ok(kind) if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
    files
}
