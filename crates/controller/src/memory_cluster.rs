//! API server in memory for tests. Stores objects of any kind as JSON, and implements what the operator uses: lists by label, create, merge
//! patch, server-side apply by one manager, replace and delete, with resource versions, preconditions, finalizers and owner references.

use std::collections::BTreeMap;
use std::sync::Arc;

use json_patch::merge;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Client;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::clock::Clock;
use crate::fake_api::{self, RecordedRequest};

/// Response to a request: status code and body.
type Response = (u16, Value);

/// Plural name of a kind, namespace (empty for cluster-scoped objects) and name.
type Key = (String, String, String);

/// Fault at a write request. Writes are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// This write and all later requests fail, as after a crash of the operator.
    Crash(usize),
    /// The write succeeds, but its response is lost.
    LostResponse(usize),
    /// Another client changes the object immediately before this write.
    Conflict(usize),
}

struct Objects {
    stored: BTreeMap<Key, Value>,
    /// Fields of the last server-side apply of an object.
    applied: BTreeMap<Key, Value>,
    version: u64,
    writes: usize,
    /// Plural name of the kind and name of each object that was read by name.
    reads: Vec<String>,
    fault: Option<Fault>,
    is_crashed: bool,
    /// Whether a quota denies new Jobs.
    denies_jobs: bool,
    time: Arc<Mutex<Timestamp>>,
}

/// API server in memory.
#[derive(Clone)]
pub(crate) struct MemoryCluster(Arc<Mutex<Objects>>);

impl MemoryCluster {
    /// Returns an empty cluster whose clock shows `start`.
    pub(crate) fn new(start: Timestamp) -> Self {
        Self(Arc::new(Mutex::new(Objects {
            stored: BTreeMap::new(),
            applied: BTreeMap::new(),
            version: 0,
            writes: 0,
            reads: Vec::new(),
            fault: None,
            is_crashed: false,
            denies_jobs: false,
            time: Arc::new(Mutex::new(start)),
        })))
    }

    /// Returns the clock of the cluster.
    pub(crate) fn clock(&self) -> Clock {
        Clock::simulated(self.0.lock().time.clone())
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.0.lock().now()
    }

    pub(crate) fn advance_clock(&self, time: SignedDuration) {
        *self.0.lock().time.lock() += time;
    }

    /// Returns the resource version of the last write by any client.
    pub(crate) fn version(&self) -> u64 {
        self.0.lock().version
    }

    /// Sets whether a quota denies new Jobs.
    pub(crate) fn deny_jobs(&self, deny: bool) {
        self.0.lock().denies_jobs = deny;
    }

    /// Returns a client.
    pub(crate) async fn client(&self) -> Client {
        let cluster = self.clone();
        fake_api::serve(move |request| cluster.0.lock().answer(request))
            .await
            .0
    }

    /// Sets the fault of the following writes and resets the count of writes.
    pub(crate) fn inject(&self, fault: Option<Fault>) {
        let mut objects = self.0.lock();
        (objects.fault, objects.writes, objects.is_crashed) = (fault, 0, false);
    }

    /// Returns the number of writes since [`Self::inject`].
    pub(crate) fn writes(&self) -> usize {
        self.0.lock().writes
    }

    /// Returns the reads of objects by name since the last call, for example `roles web-runner`.
    pub(crate) fn take_reads(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().reads)
    }

    /// Whether a fault has crashed the operator.
    pub(crate) fn is_crashed(&self) -> bool {
        self.0.lock().is_crashed
    }

    /// Creates or replaces an object, as another client.
    pub(crate) fn put(&self, plural: &str, object: Value) {
        let mut objects = self.0.lock();
        let key = key_of(plural, &object);
        objects.store(key, object);
    }

    /// Merges `change` into an object, as another client.
    pub(crate) fn merge(&self, plural: &str, name: &str, change: &Value) {
        let mut objects = self.0.lock();
        let key = objects.key(plural, name).unwrap();
        let mut object = objects.stored[&key].clone();
        merge(&mut object, change);
        objects.store(key, object);
    }

    /// Returns all objects of a kind.
    pub(crate) fn all<K: DeserializeOwned>(&self, plural: &str) -> Vec<K> {
        let objects = self.0.lock();
        let of_kind = objects.stored.iter().filter(|(key, _)| key.0 == plural);
        of_kind
            .map(|(_, object)| serde_json::from_value(object.clone()).unwrap())
            .collect()
    }

    /// Returns the object `name` of a kind, in any namespace.
    pub(crate) fn get<K: DeserializeOwned>(&self, plural: &str, name: &str) -> Option<K> {
        let objects = self.0.lock();
        let object = objects.stored[&objects.key(plural, name)?].clone();
        Some(serde_json::from_value(object).unwrap())
    }

    /// Deletes an object as a user does: objects with finalizers get a deletion timestamp.
    pub(crate) fn delete(&self, plural: &str, name: &str) {
        let mut objects = self.0.lock();
        let key = objects.key(plural, name).unwrap();
        objects.delete(&key, &Value::Null);
    }

    /// Deletes all objects of a kind.
    pub(crate) fn delete_all(&self, plural: &str) {
        let mut objects = self.0.lock();
        let keys = objects.stored.keys().filter(|key| key.0 == plural);
        for key in keys.cloned().collect::<Vec<_>>() {
            objects.delete(&key, &Value::Null);
        }
    }
}

/// Path of a request.
struct Path {
    key: Key,
    is_status: bool,
    query: BTreeMap<String, String>,
}

impl Path {
    fn parse(uri: &str) -> Self {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let query = form_urlencoded::parse(query.as_bytes()).into_owned();
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        // /api/VERSION or /apis/GROUP/VERSION
        let rest = &parts[if parts[0] == "api" { 2 } else { 3 }..];
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let part = |index: usize| rest.get(index).copied().unwrap_or_default().to_owned();
        Self {
            key: (part(0), namespace.to_owned(), part(1)),
            is_status: part(2) == "status",
            query: query.collect(),
        }
    }
}

fn key_of(plural: &str, object: &Value) -> Key {
    let text = |field: &str| {
        object["metadata"][field]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    (plural.to_owned(), text("namespace"), text("name"))
}

fn failure(code: u16, reason: &str, message: &str) -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code,
        "message": message, "metadata": {}, "details": {},
    });
    (code, status)
}

/// Whether `labels` match a label selector with the terms `NAME`, `!NAME`, `NAME=VALUE` and `NAME in (VALUE,…)`.
fn is_selected(labels: &Value, selector: &str) -> bool {
    let mut depth = 0;
    let terms = selector.split(|separator| {
        match separator {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        separator == ',' && depth == 0
    });
    terms.filter(|term| !term.is_empty()).all(|term| {
        if let Some((name, values)) = term.split_once(" in ") {
            let mut values = values.trim_matches(['(', ')']).split(',');
            return labels[name]
                .as_str()
                .is_some_and(|label| values.any(|value| value == label));
        }
        match (term.split_once('='), term.strip_prefix('!')) {
            (Some((name, value)), _) => labels[name] == value,
            (None, Some(name)) => labels[name].is_null(),
            (None, None) => labels[term].is_string(),
        }
    })
}

/// Removes the fields of `before` that `now` does not have from `object`.
fn remove_fields(object: &mut Value, before: &Value, now: &Value) {
    let (Some(fields), Some(before)) = (object.as_object_mut(), before.as_object()) else {
        return;
    };
    for (name, value) in before {
        match now.get(name) {
            None => drop(fields.remove(name)),
            Some(now) => {
                if let Some(field) = fields.get_mut(name) {
                    remove_fields(field, value, now);
                }
            }
        }
    }
}

impl Objects {
    fn now(&self) -> Timestamp {
        *self.time.lock()
    }

    fn key(&self, plural: &str, name: &str) -> Option<Key> {
        let mut keys = self.stored.keys();
        keys.find(|key| key.0 == plural && key.2 == name).cloned()
    }

    fn answer(&mut self, request: &RecordedRequest) -> Response {
        let path = Path::parse(&request.uri);
        if self.is_crashed {
            return failure(500, "InternalError", "the operator has crashed");
        }
        if request.method == "GET" {
            if !path.key.2.is_empty() {
                self.reads.push(format!("{} {}", path.key.0, path.key.2));
            }
            return self.read(&path);
        }
        // Events are no state of the cluster.
        if path.key.0 == "events" {
            return (201, request.body.clone());
        }
        let write = self.writes;
        self.writes += 1;
        match self.fault {
            Some(Fault::Crash(at)) if at == write => {
                self.is_crashed = true;
                return failure(500, "InternalError", "the operator has crashed");
            }
            Some(Fault::Conflict(at)) if at == write => self.touch(&path.key),
            _ => {}
        }
        let response = self.write(&path, request);
        if self.fault == Some(Fault::LostResponse(write)) {
            return failure(500, "InternalError", "the response is lost");
        }
        response
    }

    fn write(&mut self, path: &Path, request: &RecordedRequest) -> Response {
        match request.method.as_str() {
            "POST" => self.create(path, request.body.clone()),
            "PATCH" if request.content_type.contains("apply-patch") => {
                self.apply(path, &request.body)
            }
            "PATCH" if request.content_type.contains("json-patch") => {
                self.json_patch(path, &request.body)
            }
            "PATCH" => self.merge_patch(path, &request.body),
            "PUT" => self.replace(path, request.body.clone()),
            "DELETE" if path.key.2.is_empty() => self.delete_selected(path),
            "DELETE" => self.delete(&path.key, &request.body),
            method => panic!("{method} {}", request.uri),
        }
    }

    /// Changes an object as another client does, if it exists.
    fn touch(&mut self, key: &Key) {
        if let Some(object) = self.stored.get(key).cloned() {
            self.store(key.clone(), object);
        }
    }

    fn store(&mut self, key: Key, mut object: Value) -> Value {
        self.version += 1;
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = json!(self.version.to_string());
        if metadata["uid"].is_null() {
            metadata["uid"] = json!(format!("uid-{}", self.version));
        }
        if metadata["creationTimestamp"].is_null() {
            metadata["creationTimestamp"] = json!(self.now());
        }
        let is_released = metadata["deletionTimestamp"].is_string()
            && metadata["finalizers"].as_array().is_none_or(Vec::is_empty);
        if is_released {
            self.remove(&key);
        } else {
            self.stored.insert(key, object.clone());
        }
        object
    }

    /// Removes an object and the objects that it owns.
    fn remove(&mut self, key: &Key) {
        self.applied.remove(key);
        let Some(removed) = self.stored.remove(key) else {
            return;
        };
        let uid = &removed["metadata"]["uid"];
        let is_owned = |object: &Value| {
            let owners = object["metadata"]["ownerReferences"].as_array();
            owners.is_some_and(|owners| owners.iter().any(|owner| owner["uid"] == *uid))
        };
        let owned = self.stored.iter().filter(|(_, object)| is_owned(object));
        let owned: Vec<Key> = owned.map(|(key, _)| key.clone()).collect();
        for key in owned {
            self.remove(&key);
        }
    }

    fn selected(&self, path: &Path) -> Vec<(Key, Value)> {
        let selector = path.query.get("labelSelector").cloned().unwrap_or_default();
        let matches = |object: &Value| is_selected(&object["metadata"]["labels"], &selector);
        let (plural, namespace, _) = &path.key;
        self.stored
            .iter()
            .filter(|(key, _)| key.0 == *plural)
            .filter(|(key, _)| namespace.is_empty() || key.1 == *namespace)
            .filter(|(_, object)| matches(object))
            .map(|(key, object)| (key.clone(), object.clone()))
            .collect()
    }

    fn read(&self, path: &Path) -> Response {
        if path.key.2.is_empty() {
            let items = self.selected(path).into_iter().map(|(_, object)| object);
            let items: Vec<Value> = items.collect();
            let version = self.version.to_string();
            let list = json!({"metadata": {"resourceVersion": version}, "items": items});
            return (200, list);
        }
        match self.stored.get(&path.key) {
            Some(object) => (200, object.clone()),
            None => fake_api::not_found(),
        }
    }

    fn create(&mut self, path: &Path, body: Value) -> Response {
        let (plural, namespace, _) = &path.key;
        let name = body["metadata"]["name"].as_str().unwrap().to_owned();
        if plural == "jobs" && self.denies_jobs {
            let message = format!("jobs.batch \"{name}\" is forbidden: exceeded quota: small");
            return failure(403, "Forbidden", &message);
        }
        let key = (plural.clone(), namespace.clone(), name);
        if self.stored.contains_key(&key) {
            return failure(409, "AlreadyExists", "the object exists");
        }
        let mut object = body;
        object["metadata"]["namespace"] = json!(namespace);
        (201, self.store(key, object))
    }

    /// Returns the conflict of `body` with the stored object, if its uid or resource version differs.
    fn conflict(&self, path: &Path, body: &Value) -> Option<Response> {
        let stored = self.stored.get(&path.key);
        let differs = |field: &str| {
            let wanted = &body["metadata"][field];
            !wanted.is_null() && stored.is_none_or(|stored| stored["metadata"][field] != *wanted)
        };
        ["uid", "resourceVersion"]
            .into_iter()
            .any(differs)
            .then(|| failure(409, "Conflict", "the object has been modified"))
    }

    fn apply(&mut self, path: &Path, body: &Value) -> Response {
        let stored = self.stored.get(&path.key);
        // An apply that creates the object ignores the resource version.
        let is_new = stored.is_none() && body["metadata"]["uid"].is_null();
        if let Some(conflict) = self.conflict(path, body).filter(|_| !is_new) {
            return conflict;
        }
        if path.is_status && stored.is_none() {
            return fake_api::not_found();
        }
        let code = if stored.is_some() { 200 } else { 201 };
        let namespace = path.key.1.clone();
        let mut object = stored
            .cloned()
            .unwrap_or_else(|| json!({"metadata": {"namespace": namespace, "name": path.key.2}}));
        let mut applied_key = path.key.clone();
        if path.is_status {
            applied_key.0.push_str("/status");
        }
        if let Some(before) = self.applied.get(&applied_key) {
            remove_fields(&mut object, before, body);
        }
        let mut fields = body.clone();
        if path.is_status {
            fields = json!({"status": fields["status"]});
        }
        let mut without_nulls = Value::Object(Map::new());
        merge(&mut without_nulls, &fields);
        // Server-side apply replaces lists, like a merge patch.
        merge(&mut object, &without_nulls);
        self.applied.insert(applied_key, fields);
        (code, self.store(path.key.clone(), object))
    }

    fn merge_patch(&mut self, path: &Path, body: &Value) -> Response {
        let Some(stored) = self.stored.get(&path.key).cloned() else {
            return fake_api::not_found();
        };
        if let Some(conflict) = self.conflict(path, body) {
            return conflict;
        }
        let mut object = stored;
        merge(&mut object, body);
        (200, self.store(path.key.clone(), object))
    }

    fn json_patch(&mut self, path: &Path, body: &Value) -> Response {
        let Some(mut object) = self.stored.get(&path.key).cloned() else {
            return fake_api::not_found();
        };
        let operations: json_patch::Patch = serde_json::from_value(body.clone()).unwrap();
        match json_patch::patch(&mut object, &operations) {
            Ok(()) => (200, self.store(path.key.clone(), object)),
            Err(error) => failure(422, "Invalid", &error.to_string()),
        }
    }

    fn replace(&mut self, path: &Path, body: Value) -> Response {
        if let Some(conflict) = self.conflict(path, &body) {
            return conflict;
        }
        let Some(stored) = self.stored.get(&path.key) else {
            return fake_api::not_found();
        };
        let mut object = body;
        object["metadata"]["uid"] = stored["metadata"]["uid"].clone();
        (200, self.store(path.key.clone(), object))
    }

    fn delete(&mut self, key: &Key, options: &Value) -> Response {
        let Some(mut object) = self.stored.get(key).cloned() else {
            return fake_api::not_found();
        };
        let preconditions = &options["preconditions"];
        for field in ["uid", "resourceVersion"] {
            let wanted = &preconditions[field];
            if !wanted.is_null() && object["metadata"][field] != *wanted {
                return failure(409, "Conflict", "the precondition failed");
            }
        }
        object["metadata"]["deletionTimestamp"] = json!(self.now());
        (200, self.store(key.clone(), object))
    }

    fn delete_selected(&mut self, path: &Path) -> Response {
        for (key, _) in self.selected(path) {
            self.delete(&key, &Value::Null);
        }
        (200, json!({"kind": "Status", "status": "Success"}))
    }
}
