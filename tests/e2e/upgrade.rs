//! Upgrade from each earlier version of `hack/earlier list`, and rollback to it: resources of every kind continue, and nothing is lost or
//! done twice.
//!
//! [`KINDS`] has the resources. Those with [`Course::Rests`] start no run while the operator is replaced, and stay as they are. Those with
//! [`Course::Runs`] have a run or a build in progress.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use alustan_api::run::key;
use alustan_api::{DISCARD_PLAN, RECONCILE_AT, Reason, State, Terraform, TerraformRun, names};
use alustan_tests::{
    Cluster, Counter, Scene, StateServer, condition, node, scene_without_operator,
};
use futures::future::join_all;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::approval::{approve, pending};
use crate::cache::{self, create_claim};
use crate::drift;

/// An earlier version of the operator.
struct Version {
    name: String,
    /// Whether docs/upgrading.md supports the rollback to it.
    has_rollback: bool,
}

impl Version {
    async fn all() -> Vec<Self> {
        let cluster = Cluster::connect().await;
        let list = cluster.run("hack/earlier", &["list"]).await;
        list.lines()
            .map(|line| {
                let fields: Vec<_> = line.split_whitespace().collect();
                Self {
                    name: fields[0].to_owned(),
                    has_rollback: fields[2] == "rollback",
                }
            })
            .collect()
    }
}

/// A resource of the test.
struct Kind {
    name: &'static str,
    /// Repository of its module.
    module: &'static str,
    /// State after its creation.
    created: State,
    course: Course,
    /// Earlier version that lacks a field or an annotation of the resource.
    lacking: Option<&'static str>,
}

/// Course of a resource while the operator is replaced.
#[derive(Clone, Copy)]
enum Course {
    /// No run starts, and the state stays this one.
    Rests(State),
    /// A run or a build is in progress. The resource has this number of runs per replacement.
    Runs(i64),
    /// A destroy is in progress.
    Destroyed,
    /// The operator corrects drift that arose during the replacement.
    Drifts,
}

/// Returns a kind of resource that rests in `state`.
const fn rests(name: &'static str, module: &'static str, state: State) -> Kind {
    Kind {
        name,
        module,
        created: state,
        course: Course::Rests(state),
        lacking: None,
    }
}

/// Returns a kind of resource with another course.
const fn moves(name: &'static str, module: &'static str, course: Course) -> Kind {
    Kind {
        name,
        module,
        created: State::Success,
        course,
        lacking: None,
    }
}

impl Kind {
    /// After its creation, [`Matrix::prepare`] brings the resource to `state`.
    const fn then(mut self, state: State) -> Self {
        self.course = Course::Rests(state);
        self
    }

    const fn not_in(mut self, version: &'static str) -> Self {
        self.lacking = Some(version);
        self
    }

    /// Whether the resource applies [`Matrix::module`]. The plan of `discarded` is never applied.
    fn is_counted(&self) -> bool {
        matches!(self.module, "web" | "unit" | "building") && self.name != "discarded"
    }
}

const BEFORE_0_1: &str = "before-0.1";

/// Resources of the test, in three groups: without a run, with drift, with a run in progress. [`Matrix::fields`] has the specs.
const KINDS: &[Kind] = &[
    rests("plain", "web", State::Success),
    rests("managed", "web", State::Success),
    rests("local", "web", State::Success),
    rests("http", "web", State::Success),
    rests("inputs", "web", State::Success),
    rests("consumer", "web", State::Success),
    rests("scripted", "web", State::Success),
    rests("protected", "web", State::Success),
    rests("unit", "unit", State::Success).not_in(BEFORE_0_1),
    rests("plan-only", "web", State::Planned).not_in(BEFORE_0_1),
    rests("pending", "web", State::AwaitingApproval),
    rests("shared", "web", State::AwaitingApproval).not_in(BEFORE_0_1),
    rests("discarded", "web", State::AwaitingApproval)
        .then(State::Stalled)
        .not_in(BEFORE_0_1),
    rests("suspended", "web", State::Success).then(State::Pending),
    rests("failed", "failing", State::Failed),
    rests("stalled", "failing", State::Stalled),
    rests("reports", "greeting", State::Success).then(State::Drifted),
    moves("corrects", "greeting", Course::Drifts),
    moves("destroying", "web", Course::Destroyed),
    moves("applying", "web", Course::Runs(1)),
    moves("waits", "web", Course::Runs(1)),
    moves("building", "building", Course::Runs(1)),
    moves("approved", "web", Course::Runs(2)),
    moves("planning", "web", Course::Runs(2)),
];

fn retry(limit: u32, backoff: &str) -> Value {
    json!({"limit": limit, "minBackoff": backoff, "maxBackoff": backoff})
}

/// Module whose plan fails.
const FAILING: &str = r#"
variable "me" {}
output "v" {
  value = 1
  precondition {
    condition     = var.me == ""
    error_message = "never"
  }
}
"#;

/// User and password of the `http` backend. The password has less than 12 bytes, so `tests/src/bin/sweep.rs` does not search for it.
const HTTP_LOGIN: (&str, &str) = ("alice", "x3marker-8k");

/// The resources of [`KINDS`] in the namespace of a test.
struct Matrix {
    scene: Arc<Scene>,
    /// Name of the earlier version.
    version: String,
    /// Receives a request for each object of [`Self::module`] that is created or destroyed.
    counter: Counter,
    /// State of the resource `http`.
    server: StateServer,
}

/// A resource that rests, as stored.
#[derive(Debug, PartialEq, Eq)]
struct Stored {
    state: State,
    /// Number of the last run in the status and in the run record.
    runs: (Option<i64>, i64),
    failures: Option<i32>,
    /// Id of the plan that waits for approval.
    plan: Option<String>,
    /// Digests of pin, state, outputs and text of the plan.
    digests: BTreeMap<String, u64>,
}

/// All that a replacement of the operator must keep.
struct Snapshot {
    resources: BTreeMap<&'static str, Stored>,
    /// Uids of Jobs by name.
    jobs: BTreeMap<String, String>,
    /// Uids of `TerraformRun`s by name.
    records: BTreeMap<String, String>,
}

/// Runs in progress.
struct Flight {
    /// Uid of the resource that is being destroyed.
    destroying: String,
    /// Id of the previous plan of the resource `planning`.
    planned: Option<String>,
}

/// Paths of the requests that are held while the operator is replaced: of a destroy, two applies and a plan.
fn held(round: u32) -> [String; 4] {
    [
        format!("/destroyed/destroying/{round}"),
        format!("/made/applying/{round}"),
        format!("/made/approved/{round}"),
        format!("/planned/{round}"),
    ]
}

fn digest(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn is_observed(tf: &Terraform) -> bool {
    let status = tf.status.as_ref();
    status.and_then(|status| status.observed_generation) == tf.metadata.generation
}

/// Returns the uids of objects by name.
fn uids<K: kube::Resource>(objects: impl IntoIterator<Item = K>) -> BTreeMap<String, String> {
    objects
        .into_iter()
        .map(|object| (object.name_any(), object.uid().unwrap()))
        .collect()
}

/// Copies the base image `image` to another repository. The catalogue of the operator does not list this repository, so the earlier and the
/// new operator version each add their own runner to the images that they build.
async fn copy_base(scene: &Scene, image: &str) {
    let registry = format!("docker://{}", node(5000));
    let from = format!("{registry}/alustan/{image}:dev");
    let to = format!("{registry}/{}/{image}:1", scene.namespace);
    let plain = ["--src-tls-verify=false", "--dest-tls-verify=false"];
    let copy = [&["copy"], &plain[..], &[&from, &to]].concat();
    scene.cluster.run("skopeo", &copy).await;
}

/// Returns the number of the last run of `name` from its run record.
async fn recorded(scene: &Scene, name: &str) -> i64 {
    let record = &scene.data(&names::record(name)).await[key::RECORD];
    let record: Value = serde_json::from_str(record).unwrap();
    record["number"].as_i64().unwrap()
}

impl Matrix {
    /// Returns a module with an object that is replaced in each step. Another object stays: a plan that deletes all objects would wait for
    /// approval. Each repository has another text, and so another image.
    fn module(&self, repository: &str, step: u32) -> String {
        let destroyed = self.counter.command("/destroyed/${self.input}");
        let more = format!(
            "input = \"${{var.me}}/${{var.step}}\"\n  triggers_replace = var.step\n  provisioner \"local-exec\" {{\n    \
             when = destroy\n    interpreter = [\"bash\", \"-c\"]\n    command = \"{destroyed}\"\n  }}"
        );
        let object = self.counter.resource("step", "/made/${self.input}", &more);
        format!(
            "# {repository}\nvariable \"me\" {{}}\nvariable \"step\" {{ default = {step} }}\nvariable \"value\" {{ default = \"v\" }}\n\
             variable \"password\" {{\n  default = \"\"\n  sensitive = true\n}}\n\
             output \"v\" {{ value = var.value }}\n\
             output \"password\" {{\n  value = var.password\n  sensitive = true\n}}\n\
             resource \"terraform_data\" \"stays\" {{}}\n{object}"
        )
    }

    /// Returns the fields of the spec that distinguish the resource `name` in step `step`.
    fn fields(&self, name: &str, step: u32) -> Value {
        match name {
            "managed" => json!({"backend": {"provider": "managed"}}),
            "local" => json!({"backend": {"provider": "local"}}),
            "http" => {
                let address = format!("http://{}/http", self.server.address);
                json!({"backend": {
                    "provider": "http", "address": address, "lockAddress": address,
                    "secretRef": {"name": "http"},
                }})
            }
            "inputs" => json!({
                "variablesFrom": [
                    {"configMapRef": {"name": "settings"}},
                    {"secretRef": {"name": "db", "keys": {"password": "password"}}},
                ],
                "outputs": {"configMapName": "inputs-told"},
            }),
            "consumer" => json!({
                "variablesFrom": [{"terraformRef": {"name": "inputs", "outputs": {"value": "v"}}}],
            }),
            "scripted" => json!({"scripts": {
                "apply": {"inline": "terraform apply -auto-approve\n"},
                "destroy": {"inline": "terraform destroy -auto-approve\n"},
            }}),
            "protected" => json!({"deletionProtection": true}),
            "unit" => json!({"engine": {"wrapper": "terragrunt"}}),
            "plan-only" => json!({"mode": "PlanOnly"}),
            "pending" | "discarded" | "approved" => json!({"approval": {"mode": "Manual"}}),
            "shared" => json!({
                "approval": {"mode": "Manual"}, "cache": {"claimName": cache::CLAIM},
            }),
            "failed" => json!({"retry": retry(3, "1h")}),
            "stalled" => json!({"retry": retry(1, "1h")}),
            "reports" => self.drifting(name, "Report"),
            "corrects" => self.drifting(name, "Correct"),
            "waits" => json!({"dependsOn": [{"name": "applying"}]}),
            "planning" => {
                let hold = self.counter.command(&format!("/planned/{step}"));
                let plan = "terraform plan -detailed-exitcode -out=\"$ALUSTAN_PLAN_FILE\"";
                let script = format!("#!/bin/bash\n{hold}\n{plan}\n");
                json!({"approval": {"mode": "Manual"}, "scripts": {"plan": {"inline": script}}})
            }
            _ => json!({}),
        }
    }

    /// Returns the fields of a resource whose object drifts. No drift check is due during the test.
    fn drifting(&self, name: &str, mode: &str) -> Value {
        json!({
            "variables": {"name": name, "namespace": self.scene.namespace},
            "runner": {"envFromSecrets": [{"name": "credentials"}]},
            "driftDetection": {"mode": mode, "interval": "1h"},
        })
    }

    /// Returns the kinds of resources that the earlier version supports.
    fn kinds(&self) -> impl Iterator<Item = &'static Kind> {
        KINDS
            .iter()
            .filter(|kind| kind.lacking != Some(self.version.as_str()))
    }

    fn has(&self, name: &str) -> bool {
        self.kinds().any(|kind| kind.name == name)
    }

    /// Returns the resource `name` in step `step`.
    fn resource(&self, name: &str, step: u32) -> Value {
        let kind = self.kinds().find(|kind| kind.name == name).unwrap();
        let mut resource = self.scene.resource_of(name, kind.module);
        let spec = &mut resource["spec"];
        spec["variables"] = json!({"me": name});
        if kind.module == "web" {
            spec["variables"]["step"] = json!(step);
        }
        for (field, value) in self.fields(name, step).as_object().unwrap() {
            spec[field] = value.clone();
        }
        // The default base image changes with the version of the operator.
        if name != "plain" {
            let image = if kind.module == "unit" {
                "terragrunt"
            } else {
                "terraform"
            };
            let repository = format!("{}/{image}:1", self.scene.namespace);
            spec["containerRegistry"]["baseImage"] =
                json!(format!("registry.alustan.test:5000/{repository}"));
        }
        resource
    }

    async fn apply(&self, name: &str, step: u32) {
        self.scene.apply(&self.resource(name, step)).await;
    }

    /// Applies the resource `name` in step `step` with another value of `field`.
    async fn apply_with(&self, name: &str, step: u32, field: &str, value: Value) {
        let mut resource = self.resource(name, step);
        resource["spec"][field] = value;
        self.scene.apply(&resource).await;
    }

    async fn reaches(&self, name: &str, state: State) {
        self.scene
            .wait(name, state.as_str(), |tf| {
                let status = tf.status.as_ref();
                is_observed(tf) && status.is_some_and(|status| status.state == state)
            })
            .await;
    }

    /// Creates repositories, Secrets and all resources without a run in progress.
    async fn create(&self) {
        let scene = &self.scene;
        copy_base(scene, "terraform").await;
        scene.provider_credentials("credentials").await;
        let (user, password) = HTTP_LOGIN;
        let login = [("TF_HTTP_USERNAME", user), ("TF_HTTP_PASSWORD", password)];
        scene.secret("http", "Opaque", &login).await;
        scene
            .secret("db", "Opaque", &[("password", "sesame")])
            .await;
        scene.config_map("settings", &[("value", "blue")]).await;
        let module = self.module("web", 1);
        scene.commit("web", &[("main.tf", &module)]).await;
        scene.commit("failing", &[("main.tf", FAILING)]).await;
        scene
            .commit("greeting", &[("main.tf", drift::MODULE)])
            .await;
        if self.has("unit") {
            copy_base(scene, "terragrunt").await;
            let files = [
                ("main.tf", module.as_str()),
                ("terragrunt.hcl", "inputs = {}\n"),
            ];
            scene.commit("unit", &files).await;
        }
        if self.has("shared") {
            create_claim(scene).await;
            scene.volume_of(cache::CLAIM).await;
        }
        let created: Vec<_> = self
            .kinds()
            .filter(|kind| matches!(kind.course, Course::Rests(_) | Course::Drifts))
            .collect();
        for kind in &created {
            self.apply(kind.name, 1).await;
        }
        let reached = created
            .iter()
            .map(|kind| self.reaches(kind.name, kind.created));
        join_all(reached).await;
    }

    /// Brings the resources to the state in which they rest.
    async fn prepare(&self) {
        let scene = &self.scene;
        self.apply_with("suspended", 2, "suspend", json!(true))
            .await;
        if self.has("discarded") {
            let (plan, _) = pending(scene, "discarded", None).await;
            scene.annotate("discarded", DISCARD_PLAN, &plan).await;
        }
        self.change_object("reports").await;
        scene.annotate("reports", RECONCILE_AT, "drift").await;
        self.correct_drift(0).await;
        for kind in self.kinds() {
            if let Course::Rests(state) = kind.course {
                self.reaches(kind.name, state).await;
            }
        }
    }

    /// Changes the object of the resource `name` outside of Terraform.
    async fn change_object(&self, name: &str) {
        let change = r#"{"data":{"text":"changed"}}"#;
        let patch = ["patch", "configmap", name, "--type=merge", "-p", change];
        self.scene.kubectl(&patch).await;
    }

    /// Changes the object of the resource `corrects`, and waits until a drift check and an apply have corrected it. `corrected`: number of
    /// earlier corrections.
    async fn correct_drift(&self, corrected: u32) {
        let field = "driftDetection";
        let name = "corrects";
        self.change_object(name).await;
        let soon = json!({"mode": "Correct", "interval": "3s"});
        self.apply_with(name, 1, field, soon).await;
        let corrections = |tf: &Terraform| {
            let runs = tf.status.iter().flat_map(|status| &status.runs);
            runs.filter(|run| run.trigger == "drift" && run.kind.changes())
                .filter(|run| run.result == "Done")
                .count()
        };
        let wanted = usize::try_from(corrected).unwrap() + 1;
        self.scene
            .wait(name, "the correction of drift", |tf| {
                corrections(tf) == wanted
            })
            .await;
        let text = drift::text(&self.scene, name).await;
        assert_eq!(text.as_deref(), Some("hello"));
        self.apply(name, 1).await;
        self.reaches(name, State::Success).await;
    }

    async fn install(&self) {
        self.scene.cluster.run("hack/install", &[]).await;
    }

    async fn roll_back(&self) {
        let rollback = ["rollback", self.version.as_str()];
        self.scene.cluster.run("hack/earlier", &rollback).await;
    }

    /// Replaces the operator with runs in progress.
    async fn replace_during_runs(&self, round: u32, replace: impl AsyncFnOnce()) {
        let flight = self.start_runs(round).await;
        let before = self.snapshot().await;
        replace().await;
        self.finish_runs(round, flight).await;
        self.assert_kept(round, &before).await;
    }

    /// Replaces the operator without a run in progress.
    async fn replace(&self, round: u32, replace: impl AsyncFnOnce()) {
        let before = self.snapshot().await;
        replace().await;
        self.assert_kept(round, &before).await;
    }

    /// Starts a plan, two applies, a destroy and a build, and waits until all are in progress.
    async fn start_runs(&self, round: u32) -> Flight {
        let scene = &self.scene;
        let approved = self.approved_plan("approved").await;
        let planned = self.approved_plan("planning").await;
        self.apply("approved", round).await;
        self.apply("destroying", round).await;
        scene.ready("destroying").await;
        // The earlier approval is not valid for the new plan.
        let (plan, _) = pending(scene, "approved", approved.as_deref()).await;

        for path in held(round) {
            self.counter.hold(&path);
        }
        approve(scene, "approved", &plan).await;
        let destroying = scene
            .begin_to_delete("destroying", &DeleteParams::default())
            .await;
        for name in ["planning", "applying"] {
            self.apply(name, round).await;
        }
        for path in held(round) {
            self.counter.reached(&path).await;
        }
        self.apply("waits", round).await;
        scene
            .wait("waits", "a dependency that is not ready", |tf| {
                let status = tf.status.as_ref();
                is_observed(tf) && status.is_some_and(|status| !status.blocked_by.is_empty())
            })
            .await;
        let builds = scene.jobs("build").await;
        let module = self.module("building", round);
        scene.commit("building", &[("main.tf", &module)]).await;
        self.apply("building", round).await;
        scene
            .until("a build in progress", async || {
                let now = scene.jobs("build").await;
                now.iter().any(|job| !builds.contains(job)).then_some(())
            })
            .await;
        Flight {
            destroying,
            planned,
        }
    }

    /// Returns the id of the plan that was approved last.
    async fn approved_plan(&self, name: &str) -> Option<String> {
        let tf = self.scene.api::<Terraform>().get_opt(name).await.unwrap()?;
        tf.spec.approval.plan
    }

    /// Waits for the ends of the runs in progress.
    async fn finish_runs(&self, round: u32, flight: Flight) {
        let scene = &self.scene;
        for path in held(round) {
            self.counter.release(&path);
        }
        scene.deleted("destroying", &flight.destroying).await;
        let (plan, _) = pending(scene, "planning", flight.planned.as_deref()).await;
        approve(scene, "planning", &plan).await;
        for kind in self.kinds() {
            let Course::Runs(runs) = kind.course else {
                continue;
            };
            let (name, run) = (kind.name, runs * i64::from(round));
            let status = scene.ready_after_run(name, run).await.status.unwrap();
            assert_eq!(status.retry, None, "{name}");
            let failed: Vec<_> = status
                .runs
                .iter()
                .filter(|run| !matches!(run.result.as_str(), "Done" | "Changes" | "NoChanges"))
                .collect();
            assert!(failed.is_empty(), "{name}: {failed:#?}");
            assert_eq!(recorded(scene, name).await, run, "{name}");
            let is_recorded = |record: &TerraformRun| {
                record.spec.terraform.name == name && record.spec.number == run
            };
            scene
                .until(&format!("the record of run {run} of {name}"), async || {
                    self.records().await.iter().any(is_recorded).then_some(())
                })
                .await;
        }
        self.correct_drift(round).await;
    }

    async fn snapshot(&self) -> Snapshot {
        let jobs = self.scene.api::<Job>();
        Snapshot {
            resources: self.stored().await,
            jobs: uids(jobs.list(&ListParams::default()).await.unwrap()),
            records: uids(self.records().await),
        }
    }

    async fn records(&self) -> Vec<TerraformRun> {
        let api = self.scene.api::<TerraformRun>();
        api.list(&ListParams::default()).await.unwrap().items
    }

    /// Returns the resources that rest.
    async fn stored(&self) -> BTreeMap<&'static str, Stored> {
        let secrets = self.scene.api::<Secret>();
        let secrets = secrets.list(&ListParams::default()).await.unwrap().items;
        let mut all = BTreeMap::new();
        for kind in self.kinds() {
            if !matches!(kind.course, Course::Rests(_)) {
                continue;
            }
            let name = kind.name;
            let tf = self.scene.api::<Terraform>().get(name).await.unwrap();
            let status = tf.status.unwrap();
            let stored = Stored {
                state: status.state,
                runs: (status.run, recorded(&self.scene, name).await),
                failures: status.retry.as_ref().map(|retry| retry.failures),
                plan: status.pending_plan().map(|(_, id)| id.to_owned()),
                digests: self.digests(name, &secrets).await,
            };
            all.insert(name, stored);
        }
        all
    }

    async fn digests(&self, name: &str, secrets: &[Secret]) -> BTreeMap<String, u64> {
        let state = names::state(name);
        let mut digests = BTreeMap::new();
        for secret in secrets {
            let object = secret.name_any();
            let others = [names::pin(name), names::outputs(name), names::plan(name)];
            if !(others.contains(&object) || object.starts_with(&state)) {
                continue;
            }
            for (entry, value) in secret.data.iter().flatten() {
                digests.insert(format!("{object} {entry}"), digest(&value.0));
            }
        }
        if name == "inputs" {
            let told = ["get", "configmap", "inputs-told", "-o", "jsonpath={.data}"];
            digests.insert(
                "inputs-told".to_owned(),
                digest(self.scene.kubectl(&told).await),
            );
        }
        if name == "http" {
            digests.insert("server".to_owned(), digest(self.server.state("http")));
        }
        if name == "local" {
            let volume = self.scene.volume_of(&names::cache(name)).await;
            let state = std::fs::read(volume.join("state/terraform.tfstate")).unwrap();
            digests.insert("volume".to_owned(), digest(state));
        }
        digests
    }

    /// Edits a field of each resource that rests, on which no apply depends, and waits until the operator has observed the edit. The operator
    /// may have to query git and the registry first.
    async fn touch(&self, round: u32) {
        let edit = json!({"spec": {"timeouts": {"plan": format!("{}m", 20 + round)}}});
        let api = self.scene.api::<Terraform>();
        let touched = self.kinds().map(async |kind| {
            if let Course::Rests(state) = kind.course {
                let patch = Patch::Merge(&edit);
                api.patch(kind.name, &PatchParams::default(), &patch)
                    .await
                    .unwrap();
                self.reaches(kind.name, state).await;
            }
        });
        join_all(touched).await;
    }

    /// Asserts that the installed operator has kept all that existed before the replacement.
    async fn assert_kept(&self, round: u32, before: &Snapshot) {
        self.touch(round).await;
        let after = self.snapshot().await;
        for (name, stored) in &before.resources {
            assert_eq!(after.resources[name], *stored, "{name}, round {round}");
        }
        for (job, uid) in &before.jobs {
            let same = after.jobs.get(job).is_none_or(|now| now == uid);
            assert!(same, "round {round}: Job {job} was created again");
        }
        for (record, uid) in &before.records {
            let now = after.records.get(record);
            assert_eq!(now, Some(uid), "round {round}: TerraformRun {record}");
        }
        let lost = [
            Reason::RecordUnreadable,
            Reason::RecordForged,
            Reason::StateLost,
        ]
        .map(|reason| reason.to_string());
        let resources = self.scene.api::<Terraform>();
        for tf in resources.list(&ListParams::default()).await.unwrap() {
            let ready = condition(&tf, "Ready").unwrap();
            assert!(
                !lost.contains(&ready.reason),
                "{}: {ready:?}",
                tf.name_any()
            );
        }
        let delete = ["delete", "tf", "protected", "--dry-run=server"];
        let (deleted, output) = self.scene.try_kubectl(&delete).await;
        assert!(
            !deleted && output.contains("spec.deletionProtection"),
            "{output}"
        );
    }

    /// Continues the resources that rested, and deletes everything.
    async fn finish(&self, rounds: u32) {
        let scene = &self.scene;
        for name in ["pending", "shared"] {
            if self.has(name) {
                let (plan, _) = pending(scene, name, None).await;
                approve(scene, name, &plan).await;
            }
        }
        self.apply_with("suspended", 2, "suspend", json!(false))
            .await;
        self.apply_with("failed", 1, "retry", retry(3, "1s")).await;
        self.apply_with("protected", 1, "deletionProtection", json!(false))
            .await;
        if self.has("plan-only") {
            self.apply_with("plan-only", 1, "mode", json!("Apply"))
                .await;
            let applied = Reason::Applied.to_string();
            scene.reason("plan-only", &applied).await;
        }
        if self.has("discarded") {
            let tf = scene.api::<Terraform>().get("discarded").await.unwrap();
            approve(scene, "discarded", &tf.annotations()[DISCARD_PLAN]).await;
            let message = "spec.approval.plan names this plan and has no effect";
            scene.wait_for_message("discarded", message).await;
        }
        for name in ["pending", "shared", "suspended"] {
            if self.has(name) {
                scene.ready_after_run(name, 2).await;
            }
        }
        // The failure before the upgrade counts.
        self.reaches("failed", State::Stalled).await;
        assert_eq!(recorded(scene, "failed").await, 3);
        for name in ["stalled", "reports"] {
            let runs = if name == "reports" { 2 } else { 1 };
            assert_eq!(recorded(scene, name).await, runs, "{name}");
        }

        let resources = scene.api::<Terraform>();
        let all = resources.list(&ListParams::default()).await.unwrap().items;
        for tf in &all {
            scene
                .begin_to_delete(&tf.name_any(), &DeleteParams::background())
                .await;
        }
        for tf in &all {
            scene.deleted(&tf.name_any(), &tf.uid().unwrap()).await;
        }
        let mut requested = self.counter.requested_paths();
        requested.sort();
        assert_eq!(requested, self.expected_paths(rounds));
        scene.nothing_left().await;
    }

    /// Returns the requests of the whole test: each object is created and destroyed once, and each plan with a script is made once.
    fn expected_paths(&self, rounds: u32) -> Vec<String> {
        let counted = self.kinds().filter(|kind| kind.is_counted());
        let steps = counted.flat_map(|kind| {
            let steps = match (kind.course, kind.name) {
                (Course::Rests(_), "suspended") => 2,
                (Course::Rests(_), _) => 1,
                _ => rounds,
            };
            (1..=steps).map(|step| format!("{}/{step}", kind.name))
        });
        let mut paths: Vec<_> = steps
            .flat_map(|step| [format!("/made/{step}"), format!("/destroyed/{step}")])
            .chain((1..=rounds).map(|round| format!("/planned/{round}")))
            .collect();
        paths.sort();
        paths
    }
}

/// Tests that run while no other test runs: see `scene_without_operator`.
mod alone {
    use super::*;

    #[tokio::test]
    async fn upgrade_and_rollback_lose_and_repeat_nothing() {
        for version in Version::all().await {
            println!("version {}", version.name);
            let test = format!("upgrade-{}", version.name.replace('.', "-"));
            Box::pin(scene_without_operator(&test, async |scene: Arc<Scene>| {
                let install = ["install", version.name.as_str()];
                scene.cluster.run("hack/earlier", &install).await;
                let matrix = Matrix {
                    scene,
                    version: version.name.clone(),
                    counter: Counter::start().await,
                    server: StateServer::start(HTTP_LOGIN.0, HTTP_LOGIN.1).await,
                };
                matrix.create().await;
                matrix.prepare().await;
                let install = async || matrix.install().await;
                matrix.replace_during_runs(1, install).await;
                let mut rounds = 1;
                if version.has_rollback {
                    let roll_back = async || matrix.roll_back().await;
                    matrix.replace_during_runs(2, roll_back).await;
                    matrix.replace(3, install).await;
                    rounds = 2;
                }
                matrix.finish(rounds).await;
            }))
            .await;
        }
    }
}
