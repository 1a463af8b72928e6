//! Heap memory that the watch caches and [`Memory`] take per resource.

use std::collections::BTreeMap;

use allocation_counter::{AllocationInfo, measure};
use alustan_api::labels::{self, Component, JOB_NAME};
use alustan_api::{TerraformStatus, names};
use alustan_core::observed::SourceSeen;
use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::core::ObjectList;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::indexed_store::{Indexed, IndexedStore, IndexedWriter, indexed_store};
use crate::memory::Memory;
use crate::resource::{Guarded, ref_of};
use crate::watch::cached::{CachedClaim, CachedJob, CachedPod};
use crate::watch::{PAGE_SIZE, trim};

/// Number of resources whose objects are measured.
const RESOURCES: usize = 200;
/// Resource and Secrets that an operator stored after an apply.
const STORED: &str = include_str!("../../api/tests/stored/5e455a4/applied.json");
const TIME: &str = "2026-11-25T23:24:11Z";
const DIGEST: &str = "sha256:9d0df662baf4f1f082c8ec1794bfb6a873239369be65ca8218bcbefbe5deb0e0";

/// Objects of an applied resource, as the API server returns them.
struct Fixture {
    number: usize,
    stored: Value,
}

impl Fixture {
    fn new(number: usize) -> Self {
        Self {
            number,
            stored: serde_json::from_str(STORED).unwrap(),
        }
    }

    fn name(&self) -> String {
        format!("application-{}", self.number)
    }

    fn uid(&self) -> String {
        format!("553b2616-fdd0-4581-b411-{:012}", self.number)
    }

    fn job_name(&self) -> String {
        format!("{}-apply-1", self.name())
    }

    fn metadata(&self, name: &str, component: Component) -> Value {
        let fields: Value = (0..40)
            .map(|field| (format!("f:field-{field}"), json!({})))
            .collect();
        let manager = json!({
            "manager": "alustan", "operation": "Apply", "apiVersion": "v1", "time": TIME, "fieldsType": "FieldsV1",
            "fieldsV1": fields,
        });
        json!({
            "name": name, "namespace": format!("team-{}", self.number % 100), "uid": self.uid(),
            "resourceVersion": "1234567", "creationTimestamp": TIME, "managedFields": [manager.clone(), manager],
            "labels": labels::of(&self.name(), &self.uid(), component),
        })
    }

    /// Returns a resource with 20 variables and ten runs, two of them failed.
    fn resource(&self) -> Value {
        let mut tf = self.stored["resource"].clone();
        tf["spec"]["variables"] = (0..20)
            .map(|n| {
                (
                    format!("variable_{n}"),
                    json!(format!("value of variable {n}")),
                )
            })
            .collect();
        let mut done = tf["status"]["runs"][0].clone();
        done["job"] = json!(self.job_name());
        let mut failed = done.clone();
        failed["reason"] = json!("ApplyFailed");
        failed["error"] =
            json!("apply ended with exit code 1: Error: local-exec provisioner error".repeat(3));
        tf["status"]["runs"] = (0..10)
            .map(|run| {
                if run % 5 == 1 {
                    failed.clone()
                } else {
                    done.clone()
                }
            })
            .collect();
        let applied =
            json!({"apiVersion": tf["apiVersion"], "kind": tf["kind"], "spec": tf["spec"]});
        let mut metadata = self.metadata(&self.name(), Component::Run);
        metadata["labels"] = json!({"app.kubernetes.io/name": "application", "team": "platform"});
        metadata["finalizers"] = tf["metadata"]["finalizers"].clone();
        metadata["generation"] = json!(3);
        metadata["annotations"] = json!({
            "alustan.io/uid": self.uid(), "kubectl.kubernetes.io/last-applied-configuration": applied.to_string(),
        });
        tf["metadata"] = metadata;
        tf
    }

    /// Returns the run record, run report or pin of the stored resource.
    fn stored_secret(&self, component: Component, suffix: &str) -> Value {
        let stored: BTreeMap<String, String> =
            serde_json::from_value(self.stored["secrets"][suffix].clone()).unwrap();
        let bytes = |text: String| ByteString(text.into_bytes());
        let data: BTreeMap<_, _> = stored
            .into_iter()
            .map(|(key, text)| (key, bytes(text)))
            .collect();
        let metadata = self.metadata(&format!("{}-{suffix}", self.name()), component);
        json!({"metadata": metadata, "data": data, "type": "Opaque"})
    }

    fn record(&self) -> Value {
        self.stored_secret(Component::Record, "run")
    }

    fn report(&self) -> Value {
        self.stored_secret(Component::Report, "report")
    }

    fn pin(&self) -> Value {
        self.stored_secret(Component::Pin, "pin")
    }

    fn outputs(&self) -> Value {
        let output = |n| {
            (
                format!("output_{n}"),
                ByteString(b"value of an output".to_vec()),
            )
        };
        let data: BTreeMap<_, _> = (0..10).map(output).collect();
        let metadata = self.metadata(&names::outputs(&self.name()), Component::Outputs);
        json!({"metadata": metadata, "data": data, "type": "Opaque"})
    }

    fn job(&self) -> Value {
        let mut metadata = self.metadata(&self.job_name(), Component::Run);
        metadata["annotations"] = json!({labels::INPUTS: DIGEST});
        let volumes: Vec<Value> = (0..6)
            .map(|n| json!({"name": format!("volume-{n}"), "emptyDir": {}}))
            .chain([json!({"name": "cache", "persistentVolumeClaim": {"claimName": names::cache(&self.name())}})])
            .collect();
        let variables: Vec<Value> = (0..30)
            .map(|n| json!({"name": format!("VARIABLE_{n}"), "value": "value"}))
            .collect();
        let condition = |kind: &str| {
            json!({
                "type": kind, "status": "True", "reason": "CompletionsReached", "lastProbeTime": TIME,
                "lastTransitionTime": TIME, "message": "Reached expected number of succeeded pods",
            })
        };
        json!({
            "metadata": metadata,
            "spec": {
                "backoffLimit": 0, "completions": 1, "parallelism": 1, "selector": {"matchLabels": {}},
                "template": {"spec": {
                    "containers": [{"name": "terraform", "image": DIGEST, "args": ["run"], "env": variables}],
                    "volumes": volumes,
                }},
            },
            "status": {
                "startTime": TIME, "completionTime": TIME, "succeeded": 1, "terminating": 0, "ready": 0,
                "uncountedTerminatedPods": {}, "conditions": [condition("SuccessCriteriaMet"), condition("Complete")],
            },
        })
    }

    fn pod(&self) -> Value {
        let mut metadata = self.metadata(&format!("{}-x7x2k", self.job_name()), Component::Run);
        metadata["labels"][JOB_NAME] = json!(self.job_name());
        metadata["labels"][trim::CONTROLLER_UID] = json!(self.uid());
        metadata["ownerReferences"] = json!([{
            "apiVersion": "batch/v1", "kind": "Job", "name": self.job_name(), "uid": self.uid(), "controller": true,
        }]);
        let conditions = ["Initialized", "Ready", "ContainersReady", "PodScheduled"].map(|kind| {
            json!({"type": kind, "status": "True", "lastTransitionTime": TIME, "observedGeneration": 1})
        });
        let mounts: Vec<Value> = (0..7)
            .map(|n| json!({"name": format!("volume-{n}"), "mountPath": format!("/var/run/alustan/{n}")}))
            .collect();
        let end = json!({
            "exitCode": 0, "reason": "Completed", "message": DIGEST.repeat(10), "startedAt": TIME, "finishedAt": TIME,
            "containerID": DIGEST,
        });
        json!({
            "metadata": metadata,
            "spec": {"containers": [{"name": "terraform", "image": DIGEST}]},
            "status": {
                "phase": "Succeeded", "qosClass": "Burstable", "startTime": TIME, "hostIP": "10.0.0.1",
                "podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}], "conditions": conditions,
                "containerStatuses": [{
                    "name": "terraform", "image": DIGEST, "imageID": DIGEST, "containerID": DIGEST, "ready": false,
                    "restartCount": 0, "started": false, "lastState": {}, "volumeMounts": mounts,
                    "state": {"terminated": end},
                }],
            },
        })
    }

    fn claim(&self) -> Value {
        let metadata = self.metadata(&names::cache(&self.name()), Component::Cache);
        json!({
            "metadata": metadata,
            "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": "pvc-1"},
            "status": {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "5Gi"}},
        })
    }
}

/// Returns pages of a list with one object of each fixture, as the API server returns them.
fn pages(object: fn(&Fixture) -> Value) -> Vec<String> {
    let numbers: Vec<usize> = (0..RESOURCES).collect();
    let page = |numbers: &[usize]| {
        let items: Vec<Value> = numbers
            .iter()
            .map(|number| object(&Fixture::new(*number)))
            .collect();
        json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}).to_string()
    };
    numbers.chunks(PAGE_SIZE as usize).map(page).collect()
}

/// Fills a watch cache with the objects in `pages`, as a watch does with a list.
fn list<K, C>(writer: &mut IndexedWriter<C>, pages: &[String], trim: &impl Fn(&mut K))
where
    K: DeserializeOwned + Clone,
    C: Indexed + From<K>,
{
    let objects = pages.iter().flat_map(|page| {
        let page: ObjectList<K> = serde_json::from_str(page).unwrap();
        page.items
    });
    writer.list(objects.map(|mut object| {
        trim(&mut object);
        C::from(object)
    }));
}

/// Fills the watch cache of the objects. Returns the cache and its heap memory per object.
fn filled<K, C>(
    kind: &str,
    object: fn(&Fixture) -> Value,
    trim: impl Fn(&mut K),
) -> (IndexedStore<C>, usize)
where
    K: DeserializeOwned + Clone,
    C: Indexed + From<K>,
{
    let pages = pages(object);
    let (store, mut writer) = indexed_store();
    let used = measure(|| list(&mut writer, &pages, &trim));
    (store, per_resource(kind, &used))
}

/// Returns and prints the bytes per resource. Each allocation of glibc takes about 12 more bytes.
fn per_resource(kind: &str, used: &AllocationInfo) -> usize {
    let live = |count: i64| usize::try_from(count).unwrap() / RESOURCES;
    let (bytes, count) = (live(used.bytes_current), live(used.count_current));
    let bytes = bytes + 12 * count;
    let peak = used.bytes_max >> 10;
    println!("{kind}: {bytes} bytes in {count} allocations; {peak} KiB at most");
    bytes
}

/// Removes the metadata of `object` that no reconcile reads.
fn metadata_of(object: &mut impl ResourceExt) {
    trim::metadata(object.meta_mut());
}

#[test]
fn caches_take_little_memory_per_resource() {
    let (resources, terraform) = filled("Terraform", Fixture::resource, trim::resource);
    let secret = |kind: &str, secret: fn(&Fixture) -> Value| {
        let trim = |object: &mut Secret| trim::secret(object, &resources);
        filled::<_, Secret>(kind, secret, trim).1
    };
    let sizes = [
        (terraform, 2_000),
        (secret("run record", Fixture::record), 2_150),
        (secret("run report", Fixture::report), 600),
        (secret("pin", Fixture::pin), 1_150),
        (secret("outputs", Fixture::outputs), 470),
        (
            filled::<PersistentVolumeClaim, CachedClaim>("claim", Fixture::claim, metadata_of).1,
            360,
        ),
        (
            filled::<Job, CachedJob>("Job", Fixture::job, |job| {
                trim::job_metadata(&mut job.metadata);
            })
            .1,
            660,
        ),
        (
            filled::<Pod, CachedPod>("pod", Fixture::pod, metadata_of).1,
            730,
        ),
        (remembered(&resources), 1_400),
    ];
    let total: usize = sizes.iter().map(|(bytes, _)| bytes).sum();
    println!("total: {total} bytes");
    for (bytes, limit) in sizes {
        assert!(bytes <= limit, "{bytes} bytes, more than {limit}");
    }
}

/// Returns the heap memory of [`Memory`] per resource, after reconciles whose status the watch cache has.
fn remembered(resources: &IndexedStore<Guarded>) -> usize {
    let memory = Memory::default();
    let resources: Vec<_> = resources.all().collect();
    let used = measure(|| {
        for resource in &resources {
            remember(&memory, resource);
        }
    });
    per_resource("state between reconciles", &used)
}

/// Stores in `memory` what reconciles of `resource` store.
fn remember(memory: &Memory, resource: &Guarded) {
    let key = ref_of(resource);
    let status: TerraformStatus = resource.0.as_ref().unwrap().status.clone().unwrap();
    let source = SourceSeen {
        revision: DIGEST.to_owned(),
        context: DIGEST.to_owned(),
        artifact: DIGEST.to_owned(),
        path: String::new(),
        backend: None,
        committed_at: Timestamp::UNIX_EPOCH,
        commit: None,
    };
    memory.begin(&key, resource.uid());
    memory.set_source(&key, "https://git.alustan.test/stored/ok main", source);
    memory.set_planned_image(&key, DIGEST);
    memory.set_record_version(&key, resource.resource_version());
    memory.set_status(&key, status, Some(1_234_567));
    memory.drop_watched_status(&key, 1_234_567);
}
