//! Fake metacontroller: calls the hooks and the API server like metacontroller
//! (<https://github.com/metacontroller/metacontroller/tree/v4.17.2/pkg/controller/composite>).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use alustan_api::Terraform;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use reqwest::StatusCode;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, ETAG, IF_NONE_MATCH, RETRY_AFTER};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Finalizer that metacontroller adds if a finalize hook is configured.
pub const FINALIZER: &str = "metacontroller.io/compositecontroller-alustan";
/// Interval at which the fake polls resources. The real metacontroller watches them.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Timeout of a hook call.
const TIMEOUT: Duration = Duration::from_secs(10);
/// First backoff after a failed call.
const BACKOFF: Duration = Duration::from_millis(200);

/// Configured hooks and their version.
#[derive(Clone, Copy, Debug)]
pub struct Hooks {
    /// Version of the hooks: `v1` or `v2`.
    pub version: &'static str,
    /// Whether a finalize hook is configured. The finalize hook has the same URL as the sync hook.
    pub finalize: bool,
}

impl Hooks {
    /// Hooks of `deploy/metacontroller`.
    pub const V2: Self = Self {
        version: "v2",
        finalize: false,
    };
}

/// One call of a hook.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// Name of the resource.
    pub name: String,
    /// Body of the request.
    pub request: Value,
    /// HTTP status of the response.
    pub status: u16,
    /// Body of the response. For status 304, the cached body.
    pub answer: Value,
    /// Duration of the call.
    pub took: Duration,
}

/// Response of a hook. A response with a field that this type does not have is an error, as for hooks of version `v2` of metacontroller.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Answer {
    status: Option<serde_json::Map<String, Value>>,
    children: Vec<Value>,
    resync_after_seconds: f64,
    finalized: bool,
}

/// Fake metacontroller for one namespace, which runs until dropped.
pub struct FakeMetacontroller {
    worker: JoinHandle<()>,
    calls: Arc<Mutex<Vec<Exchange>>>,
    selects: Selects,
}

/// Predicate that selects resources.
type Selects = Arc<Mutex<Box<dyn Fn(&DynamicObject) -> bool + Send>>>;

impl Drop for FakeMetacontroller {
    fn drop(&mut self) {
        self.worker.abort();
    }
}

impl FakeMetacontroller {
    /// Starts to call the hooks at `url` with `token` for the resources of `namespace`.
    pub fn start(client: Client, namespace: &str, url: &str, token: &str, hooks: Hooks) -> Self {
        let kind = ApiResource::erase::<Terraform>(&());
        let calls = Arc::new(Mutex::new(Vec::new()));
        let selects: Selects = Arc::new(Mutex::new(Box::new(|_| true)));
        let caller = HookCaller {
            api: Api::namespaced_with(client, namespace, &kind),
            http: reqwest::Client::builder()
                .timeout(TIMEOUT)
                .build()
                .expect("a client"),
            url: url.to_owned(),
            token: token.to_owned(),
            hooks,
            calls: calls.clone(),
            selects: selects.clone(),
            known: HashMap::new(),
            answers: HashMap::new(),
        };
        Self {
            worker: tokio::spawn(caller.run()),
            calls,
            selects,
        }
    }

    /// Returns all calls so far.
    pub fn calls(&self) -> Vec<Exchange> {
        self.calls.lock().unwrap().clone()
    }

    /// Restricts the selection to resources for which `selects` holds.
    pub fn select(&self, selects: impl Fn(&DynamicObject) -> bool + Send + 'static) {
        *self.selects.lock().unwrap() = Box::new(selects);
    }
}

struct HookCaller {
    api: Api<DynamicObject>,
    http: reqwest::Client,
    url: String,
    token: String,
    hooks: Hooks,
    calls: Arc<Mutex<Vec<Exchange>>>,
    selects: Selects,
    known: HashMap<String, Known>,
    /// Cached responses, each with the value of its header `ETag`. Keys are the resource name and the field `finalizing` of the request.
    answers: HashMap<(String, bool), (String, Value)>,
}

/// State of a resource after the last call for it.
struct Known {
    news: Value,
    due: Option<Instant>,
    failures: u32,
}

/// Returns the fields that cause a call when they change. Changes of other fields cause no call, because the option `ignoreStatusChanges`
/// is set.
fn news(object: &DynamicObject) -> Value {
    let metadata = &object.metadata;
    let deleted = metadata.deletion_timestamp.is_some();
    // Each change of a resource that is being deleted causes a call, so the resource version is included.
    let version = metadata.resource_version.as_ref().filter(|_| deleted);
    json!([
        metadata.uid,
        metadata.generation,
        metadata.labels,
        metadata.annotations,
        deleted,
        version
    ])
}

impl HookCaller {
    async fn run(mut self) {
        loop {
            if let Ok(all) = self.api.list(&ListParams::default()).await {
                for object in all {
                    self.reconcile(object).await;
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn reconcile(&mut self, object: DynamicObject) {
        let (name, news) = (object.name_any(), news(&object));
        let known = self.known.get(&name);
        let due = known.and_then(|known| known.due);
        let idle = known.is_some_and(|known| known.news == news);
        if idle && due.is_none_or(|due| due > Instant::now()) {
            return;
        }
        let failures = known.map_or(0, |known| known.failures);
        let (wait, failures) = match self.sync(object).await {
            Ok(wait) => (wait, 0),
            Err(problem) => {
                println!("{name}: SyncError: {problem}");
                let wait = BACKOFF.saturating_mul(1 << failures.min(8));
                (Some(wait), failures + 1)
            }
        };
        let known = Known {
            news,
            due: wait.map(|wait| Instant::now() + wait),
            failures,
        };
        self.known.insert(name, known);
    }

    /// Calls a hook and applies its response. Returns the delay until the next call.
    async fn sync(&mut self, mut parent: DynamicObject) -> Result<Option<Duration>, String> {
        let selected = (self.selects.lock().unwrap())(&parent);
        let held =
            |object: &DynamicObject| object.finalizers().iter().any(|name| name == FINALIZER);
        if !selected && !held(&parent) {
            return Ok(None);
        }
        let deleted = parent.metadata.deletion_timestamp.is_some();
        if self.hooks.finalize && !deleted && !held(&parent) {
            parent = self.change_finalizers(&parent, true).await?;
        }
        let finalizing = self.hooks.finalize && (deleted || !selected);
        let answer = match self.call(&parent, finalizing).await? {
            Ok(answer) => answer,
            Err(again) => return Ok(Some(again)),
        };
        let Answer {
            status,
            children,
            resync_after_seconds,
            finalized,
        } = serde_json::from_value(answer).map_err(|error| format!("strict: {error}"))?;
        if !children.is_empty() {
            return Err(format!("children that nobody declared: {children:?}"));
        }
        if finalized && held(&parent) {
            self.change_finalizers(&parent, false).await?;
        }
        self.write(&parent, status.unwrap_or_default()).await?;
        let again = Duration::from_secs_f64(resync_after_seconds);
        Ok((!again.is_zero()).then_some(again))
    }

    async fn change_finalizers(
        &self,
        parent: &DynamicObject,
        add: bool,
    ) -> Result<DynamicObject, String> {
        let mut finalizers: Vec<&str> = parent
            .finalizers()
            .iter()
            .filter(|name| *name != FINALIZER)
            .map(String::as_str)
            .collect();
        if add {
            finalizers.push(FINALIZER);
        }
        let metadata = json!({
            "resourceVersion": parent.resource_version(), "finalizers": finalizers,
        });
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        self.api
            .patch(&parent.name_any(), &PatchParams::default(), &patch)
            .await
            .map_err(|error| format!("can't sync finalizer: {error}"))
    }

    /// Returns the response. For status 429 (Too Many Requests), returns the delay until the next call instead.
    async fn call(
        &mut self,
        parent: &DynamicObject,
        finalizing: bool,
    ) -> Result<Result<Value, Duration>, String> {
        let body = self.request(parent, finalizing);
        let key = (parent.name_any(), finalizing);
        let mut request = self
            .http
            .post(&self.url)
            .header(CONTENT_TYPE, "application/json")
            .header(AUTHORIZATION, format!("Bearer {}", self.token))
            .body(body.to_string());
        if let Some((tag, _)) = self.answers.get(&key) {
            request = request.header(IF_NONE_MATCH, tag);
        }
        let since = Instant::now();
        let response = request.send().await.map_err(|error| format!("{error:?}"))?;
        let (status, headers) = (response.status(), response.headers().clone());
        let text = response.text().await.map_err(|error| error.to_string())?;
        let text_of = |name| {
            headers
                .get(name)
                .map(|value| value.to_str().unwrap().to_owned())
        };
        let answer = match status {
            StatusCode::NOT_MODIFIED => self.answers[&key].1.clone(),
            _ => serde_json::from_str(&text).unwrap_or(Value::Null),
        };
        self.calls.lock().unwrap().push(Exchange {
            name: parent.name_any(),
            request: body,
            status: status.as_u16(),
            answer: answer.clone(),
            took: since.elapsed(),
        });
        match status {
            StatusCode::OK => {
                if let Some(tag) = text_of(ETAG) {
                    self.answers.insert(key, (tag, answer.clone()));
                }
                Ok(Ok(answer))
            }
            StatusCode::NOT_MODIFIED => Ok(Ok(answer)),
            StatusCode::TOO_MANY_REQUESTS => {
                let seconds = text_of(RETRY_AFTER).and_then(|text| text.parse().ok());
                Ok(Err(Duration::from_secs(seconds.unwrap_or_default())))
            }
            _ => Err(format!("unsupported status code: {status} body: {text}")),
        }
    }

    fn request(&self, parent: &DynamicObject, finalizing: bool) -> Value {
        let hook = json!({"version": self.hooks.version, "webhook": {"url": self.url}});
        let mut hooks = json!({ "sync": hook });
        if self.hooks.finalize {
            hooks["finalize"] = hook;
        }
        json!({
            "controller": {
                "kind": "CompositeController", "apiVersion": "metacontroller.k8s.io/v1alpha1",
                "metadata": {"name": "alustan"},
                "spec": {
                    "parentResource": {
                        "apiVersion": "alustan.io/v1alpha1", "resource": "terraforms",
                    },
                    "hooks": hooks, "generateSelector": true,
                },
                "status": {},
            },
            "parent": parent, "children": {}, "related": {}, "finalizing": finalizing,
        })
    }

    /// Replaces the status of `parent` if it differs from `status`.
    async fn write(
        &self,
        parent: &DynamicObject,
        mut status: serde_json::Map<String, Value>,
    ) -> Result<(), String> {
        status.insert(
            "observedGeneration".to_owned(),
            json!(parent.metadata.generation),
        );
        let (name, status) = (parent.name_any(), Value::Object(status));
        let parameters = PostParams {
            field_manager: Some("metacontroller".to_owned()),
            ..PostParams::default()
        };
        loop {
            let current = self
                .api
                .get_opt(&name)
                .await
                .map_err(|error| error.to_string())?;
            let Some(mut current) = current.filter(|object| object.uid() == parent.uid()) else {
                return Ok(());
            };
            if current.data["status"] == status {
                return Ok(());
            }
            current.data["status"] = status.clone();
            match self.api.replace_status(&name, &parameters, &current).await {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(error)) if error.is_conflict() => {}
                Err(kube::Error::Api(error)) if error.is_not_found() => return Ok(()),
                Err(error) => return Err(format!("can't update status: {error}")),
            }
        }
    }
}
