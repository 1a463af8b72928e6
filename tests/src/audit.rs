//! Audit log of the API server of the dev cluster.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde::Deserialize;

use crate::Cluster;

/// User of the installed operator.
pub(crate) const OPERATOR: &str = "system:serviceaccount:alustan-system:alustan-controller";

/// Reads new entries of the audit log, also after a rotation of the file.
pub struct AuditLog {
    path: PathBuf,
    file: BufReader<File>,
    /// Start of an entry that is not written completely.
    partial: String,
}

/// Completed request to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Sender of the request.
    pub sender: Sender,
    /// Verb: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, ….
    pub verb: String,
    /// Resource, for example `secrets`.
    pub resource: String,
    /// Name of the object. Empty for lists and some create requests.
    pub name: String,
}

/// Sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sender {
    /// The installed operator.
    Operator,
    /// A run pod, with the `ServiceAccount` that the operator created for its resource.
    Runner,
}

impl Request {
    /// Whether the request changes an object.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch")
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Entry {
    stage: String,
    verb: String,
    user: User,
    object_ref: Object,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct User {
    username: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Object {
    resource: String,
    name: String,
}

impl AuditLog {
    /// Opens the log at its end.
    pub fn open(cluster: &Cluster) -> Self {
        let path = cluster.folder.join("log/audit.jsonl");
        let mut file = File::open(&path).expect("an audit log");
        file.seek(SeekFrom::End(0))
            .expect("the end of the audit log");
        Self {
            path,
            file: BufReader::new(file),
            partial: String::new(),
        }
    }

    /// Skips all entries that exist.
    pub fn skip(&mut self) {
        self.each(|_| {});
    }

    /// Returns the requests of the operator and of run pods since the last read. Omits requests for Leases, which the operator sends
    /// regardless of the number of resources.
    pub fn requests(&mut self) -> Vec<Request> {
        let mut requests = Vec::new();
        self.each(|line| requests.extend(parse(line)));
        requests
    }

    /// Passes the entries about the operator and about run pods since the last read to `visit`.
    pub(crate) fn each(&mut self, mut visit: impl FnMut(&str)) {
        loop {
            while self.file.read_line(&mut self.partial).expect("a log") > 0 {
                if !self.partial.ends_with('\n') {
                    break;
                }
                // Skips the entries of Kubernetes components, which are the majority.
                if self.partial.contains("alustan-controller") || self.partial.contains("-runner") {
                    visit(&self.partial);
                }
                self.partial.clear();
            }
            let current = std::fs::metadata(&self.path).expect("an audit log");
            let open = self.file.get_ref().metadata().expect("an open file");
            if current.ino() == open.ino() {
                return;
            }
            self.file = BufReader::new(File::open(&self.path).expect("an audit log"));
            self.partial.clear();
        }
    }
}

fn parse(line: &str) -> Option<Request> {
    let entry: Entry = serde_json::from_str(line).ok()?;
    let sender = sender(&entry.user.username)?;
    (entry.stage == "ResponseComplete" && entry.object_ref.resource != "leases").then_some(
        Request {
            sender,
            verb: entry.verb,
            resource: entry.object_ref.resource,
            name: entry.object_ref.name,
        },
    )
}

fn sender(user: &str) -> Option<Sender> {
    let is_runner = user.starts_with("system:serviceaccount:") && user.ends_with("-runner");
    match user {
        OPERATOR => Some(Sender::Operator),
        _ => is_runner.then_some(Sender::Runner),
    }
}
