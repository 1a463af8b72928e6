//! Resources of a campaign, and the actions of their users.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use alustan_api::{State, Terraform};
use futures::future::join_all;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::core::Status;
use serde_json::{Value, json};

use super::Results;
use super::ledger::{Action, Outcome};
use crate::scene::is_ready;
use crate::{Counter, Scene};

/// Time limit of a request of a user.
const PATIENCE: Duration = Duration::from_secs(20);
/// Objects of the module.
const OBJECTS: [&str; 2] = ["first", "second"];
/// Repositories whose commits change the objects of many resources.
const SHARED: [&str; 4] = ["shared-0", "shared-1", "shared-2", "shared-3"];
/// Repository without later commits. A plan that waits for approval then has the value of the spec.
const CONSTANT: &str = "constant";

#[derive(Clone, PartialEq, Eq)]
enum Kind {
    Auto,
    Manual,
    /// The state is on the cache volume.
    Local,
    /// The value is an output of this resource.
    Dependent(String),
}

struct Member {
    name: String,
    kind: Kind,
    repository: &'static str,
    version: u32,
}

/// Resources and their repositories.
pub(super) struct Fleet {
    scene: Arc<Scene>,
    counter: Counter,
    user: String,
    random: fastrand::Rng,
    members: Vec<Member>,
    /// Names of resources whose deletion was requested.
    deleted: BTreeSet<String>,
    /// Last commit of each repository.
    commits: BTreeMap<&'static str, u32>,
    approved: BTreeMap<String, BTreeMap<String, usize>>,
    /// Number of actions by kind.
    pub(super) counts: BTreeMap<&'static str, usize>,
}

impl Fleet {
    /// Number of resources at any time.
    pub(super) const SIZE: usize = 40;

    /// Creates repositories and resources.
    pub(super) async fn create(scene: &Arc<Scene>, random: fastrand::Rng) -> Self {
        let mut fleet = Self {
            scene: scene.clone(),
            counter: Counter::start().await,
            user: scene.cluster.user().await,
            random,
            members: Vec::new(),
            deleted: BTreeSet::new(),
            commits: BTreeMap::new(),
            approved: BTreeMap::new(),
            counts: BTreeMap::new(),
        };
        for repository in SHARED.into_iter().chain([CONSTANT]) {
            fleet.commit(repository).await;
        }
        for number in 0..Self::SIZE {
            let kind = match number % 10 {
                8 | 9 => Kind::Manual,
                7 => Kind::Local,
                6 => Kind::Dependent(format!("r{:02}", number - 6)),
                _ => Kind::Auto,
            };
            let repository = match kind {
                Kind::Manual => CONSTANT,
                _ => SHARED[number % SHARED.len()],
            };
            let member = Member {
                name: format!("r{number:02}"),
                kind,
                repository,
                version: 0,
            };
            scene.apply(&fleet.manifest(&member)).await;
            fleet.members.push(member);
        }
        fleet
    }

    fn manifest(&self, member: &Member) -> Value {
        let mut resource = self.scene.resource_of(&member.name, member.repository);
        let spec = &mut resource["spec"];
        spec["gitRepo"]["interval"] = json!("10s");
        // Outages of the network fail applies, and these failures count.
        spec["retry"]["limit"] = json!(100);
        spec["variables"] = json!({"name": member.name, "v": format!("v{}", member.version)});
        spec["outputs"] = json!({"secretName": format!("{}-outputs", member.name)});
        match &member.kind {
            Kind::Auto => {}
            Kind::Manual => spec["approval"] = json!({"mode": "Manual"}),
            Kind::Local => spec["backend"] = json!({"provider": "local"}),
            Kind::Dependent(upstream) => {
                spec["variables"] = json!({"name": member.name});
                spec["variablesFrom"] =
                    json!([{"terraformRef": {"name": upstream, "outputs": {"v": "value"}}}]);
            }
        }
        resource
    }

    /// Returns the module of commit `number`: two objects, one after the other, which are replaced when the value changes.
    fn module(&self, number: u32) -> String {
        let object = |name: &str, more: &str| {
            let command = |is_creation: bool, value: &str| {
                let path = Action::path(
                    is_creation,
                    &format!("${{{value}.name}}"),
                    name,
                    &format!("${{{value}.value}}"),
                );
                // The command quotes the path, and the shell must replace the variable.
                let path = path.replace("$HOSTNAME", "'$HOSTNAME'");
                format!("{} && sleep 0.5", self.counter.command(&path))
            };
            format!(
                "resource \"terraform_data\" \"{name}\" {{\n  {more}\n  input = local.object\n  \
                 triggers_replace = local.object\n  provisioner \"local-exec\" {{\n    \
                 interpreter = [\"bash\", \"-c\"]\n    command = \"{}\"\n  }}\n  provisioner \"local-exec\" {{\n    \
                 when = destroy\n    interpreter = [\"bash\", \"-c\"]\n    command = \"{}\"\n  }}\n}}\n",
                command(true, "self.input"),
                command(false, "self.input"),
            )
        };
        let [first, second] = OBJECTS;
        format!(
            "variable \"name\" {{}}\nvariable \"v\" {{}}\nlocals {{\n  object = {{ name = var.name, \
             value = \"${{var.v}}-c{number}\" }}\n}}\noutput \"value\" {{ value = local.object.value }}\n{}{}",
            object(first, ""),
            object(second, &format!("depends_on = [terraform_data.{first}]")),
        )
    }

    fn count(&mut self, action: &'static str) {
        *self.counts.entry(action).or_default() += 1;
    }

    async fn commit(&mut self, repository: &'static str) {
        let number = self.commits.get(repository).map_or(0, |last| last + 1);
        let text = self.module(number);
        let path = format!("{}/{repository}", self.scene.namespace);
        let write = |folder: &std::path::Path| {
            crate::scene::repositories::write(folder, &[("main.tf", &text)]);
        };
        self.scene.cluster.commit(&path, write).await;
        self.commits.insert(repository, number);
    }

    /// Performs one action of a user. A user does not repeat a request that fails.
    pub(super) async fn act(&mut self) {
        let chosen = self.random.usize(..self.members.len());
        match self.random.u8(..20) {
            // Plans wait for approval for about half a minute.
            2 | 3 => self.approve().await,
            0 => {
                let repository = SHARED[self.random.usize(..SHARED.len())];
                self.commit(repository).await;
                self.count("commits");
            }
            1 => self.replace(chosen).await,
            _ => self.edit(chosen).await,
        }
    }

    /// Changes the value of a resource. A manual resource is changed only while no plan of it can be pending.
    async fn edit(&mut self, chosen: usize) {
        let member = &self.members[chosen];
        let (name, version) = (member.name.clone(), member.version + 1);
        match member.kind {
            Kind::Dependent(_) => return,
            Kind::Manual => {
                let api: Api<Terraform> = self.scene.api();
                let Some(tf) = self.attempt(api.get(&name)).await else {
                    return;
                };
                if !is_ready(&tf) {
                    return;
                }
            }
            Kind::Auto | Kind::Local => {}
        }
        let patch = json!({"spec": {"variables": {"v": format!("v{version}")}}});
        if self.patch(&name, &patch).await {
            self.count("edits");
        }
        // A request that fails may have been executed.
        self.members[chosen].version = version;
    }

    /// Deletes a resource of kind `Auto` without dependents, and creates another one.
    async fn replace(&mut self, chosen: usize) {
        let member = &self.members[chosen];
        let has_dependents = self
            .members
            .iter()
            .any(|other| other.kind == Kind::Dependent(member.name.clone()));
        if member.kind != Kind::Auto || has_dependents {
            return;
        }
        let name = member.name.clone();
        let (base, _) = name.split_once('g').unwrap_or((&name, ""));
        let generation = self.deleted.len() + 1;
        let successor = Member {
            name: format!("{base}g{generation}"),
            kind: Kind::Auto,
            repository: member.repository,
            version: 0,
        };
        let manifest = self.manifest(&successor);
        self.members[chosen] = successor;
        self.delete_one(&name).await;
        self.deleted.insert(name);
        self.count("deletions");
        // `unsettled` repeats requests that fail.
        let _ = self.put(&manifest).await;
    }

    async fn delete_one(&mut self, name: &str) {
        let api: Api<Terraform> = self.scene.api();
        let how = DeleteParams::default();
        let _ = self.attempt(api.delete(name, &how)).await;
    }

    async fn put(&mut self, manifest: &Value) -> Option<Terraform> {
        let name = manifest["metadata"]["name"].as_str().expect("a name");
        let api: Api<Terraform> = self.scene.api();
        let parameters = PatchParams::apply("e2e").force();
        self.attempt(api.patch(name, &parameters, &Patch::Apply(manifest)))
            .await
    }

    /// Approves the pending plans of the current specs.
    async fn approve(&mut self) {
        let api: Api<Terraform> = self.scene.api();
        let Some(all) = self.attempt(api.list(&ListParams::default())).await else {
            return;
        };
        for tf in all {
            let name = tf.name_any();
            let Some(status) = tf.status.as_ref().filter(|status| {
                status.state == State::AwaitingApproval
                    && status.observed_generation == tf.metadata.generation
            }) else {
                continue;
            };
            let Some(id) = status.pending_plan().map(|(_, id)| id.to_owned()) else {
                continue;
            };
            let value = self.value_of(&tf, CONSTANT);
            let actions = self.counter.requested_paths().len();
            let approved = self.approved.entry(name.clone()).or_default();
            approved.entry(value).or_insert(actions);
            let approval = json!({"spec": {"approval": {"plan": id, "by": self.user}}});
            if self.patch(&name, &approval).await {
                self.count("approvals");
            }
        }
    }

    /// Returns the value that the spec of `tf` and the last commit of `repository` require.
    fn value_of(&self, tf: &Terraform, repository: &str) -> String {
        let variable = serde_json::to_value(&tf.spec.variables).expect("variables");
        let version = variable["v"].as_str().unwrap_or_default();
        format!("{version}-c{}", self.commits[repository])
    }

    async fn patch(&mut self, name: &str, patch: &Value) -> bool {
        let api: Api<Terraform> = self.scene.api();
        let parameters = PatchParams::default();
        self.attempt(api.patch(name, &parameters, &Patch::Merge(patch)))
            .await
            .is_some()
    }

    /// Sends a request as a user. Counts a request that fails. Panics if the API server refuses it.
    async fn attempt<T>(&mut self, request: impl Future<Output = kube::Result<T>>) -> Option<T> {
        match tokio::time::timeout(PATIENCE, request).await {
            Ok(Ok(value)) => return Some(value),
            Ok(Err(kube::Error::Api(status))) if is_refusal(&status) => {
                panic!("refused: {status:?}")
            }
            Ok(Err(_)) | Err(_) => {}
        }
        self.count("failed requests");
        None
    }

    /// Approves pending plans, creates missing resources, and returns the resources that do not match their specs yet.
    pub(super) async fn unsettled(&mut self) -> Vec<String> {
        self.approve().await;
        let api: Api<Terraform> = self.scene.api();
        let Some(all) = self.attempt(api.list(&ListParams::default())).await else {
            return vec!["the API server".to_owned()];
        };
        let mut left = Vec::new();
        let kept: Vec<String> = all
            .iter()
            .filter(|tf| tf.metadata.deletion_timestamp.is_none())
            .map(ResourceExt::name_any)
            .filter(|name| self.deleted.contains(name))
            .collect();
        for name in kept {
            self.delete_one(&name).await;
        }
        let missing: Vec<Value> = self
            .members
            .iter()
            .filter(|member| !all.iter().any(|tf| tf.name_any() == member.name))
            .map(|member| self.manifest(member))
            .collect();
        for manifest in missing {
            left.push(format!("{} was not created", manifest["metadata"]["name"]));
            let _ = self.put(&manifest).await;
        }
        for tf in &all {
            let (name, status) = (tf.name_any(), tf.status.clone().unwrap_or_default());
            let message = format!("{name}: {:?}: {}", status.state, status.message);
            let wanted = self.wanted_value(tf, &all.items);
            let is_settled = is_ready(tf)
                && tf.metadata.deletion_timestamp.is_none()
                && self.applied_value(&name).await == wanted;
            if !is_settled {
                left.push(message);
            }
        }
        left
    }

    fn wanted_value(&self, tf: &Terraform, all: &[Terraform]) -> Option<String> {
        let member = self
            .members
            .iter()
            .find(|member| member.name == tf.name_any())?;
        let Kind::Dependent(upstream) = &member.kind else {
            return Some(self.value_of(tf, member.repository));
        };
        let upstream = all.iter().find(|other| other.name_any() == *upstream)?;
        let value = self.wanted_value(upstream, all)?;
        Some(format!("{value}-c{}", self.commits[member.repository]))
    }

    /// Returns the published output of a resource.
    async fn applied_value(&mut self, name: &str) -> Option<String> {
        let api: Api<k8s_openapi::api::core::v1::Secret> = self.scene.api();
        let secret = self.attempt(api.get(&format!("{name}-outputs"))).await?;
        let value = secret.data?.remove("value")?;
        String::from_utf8(value.0).ok()
    }

    /// Returns the creations and destructions by all modules, in order.
    pub(super) fn actions(&self) -> Vec<Action> {
        self.counter
            .requested_paths()
            .iter()
            .map(|path| Action::parse(path).unwrap_or_else(|| panic!("a request for {path}")))
            .collect()
    }

    /// Returns results, states and specs at the end of the campaign. `results`: results of runs.
    pub(super) async fn outcome(&self, results: &Results) -> Outcome {
        let api: Api<Terraform> = self.scene.api();
        let all = api
            .list(&ListParams::default())
            .await
            .expect("a list")
            .items;
        let mut outcome = Outcome {
            results: results.lock().clone(),
            approved: self.approved.clone(),
            ..Outcome::default()
        };
        for tf in &all {
            let name = tf.name_any();
            let member = self.members.iter().find(|member| member.name == name);
            let is_local = member.is_some_and(|member| member.kind == Kind::Local);
            let state = if is_local {
                let volume = self.scene.volume_of(&format!("{name}-cache")).await;
                std::fs::read_to_string(volume.join("state/terraform.tfstate")).expect("a state")
            } else {
                self.scene.alustan(&["state", "pull", &name]).await
            };
            let wanted = self.wanted_value(tf, &all);
            for (object, value) in objects_of(&state) {
                outcome.states.insert((name.clone(), object), value);
            }
            for (object, value) in OBJECTS.iter().zip(std::iter::repeat(wanted)) {
                let value = value.unwrap_or_else(|| panic!("{name} should be gone"));
                outcome
                    .wanted
                    .insert((name.clone(), (*object).to_owned()), value);
            }
        }
        outcome
    }

    /// Deletes all resources at once, and waits until they are gone. The operator destroys dependents first.
    pub(super) async fn delete(&mut self) {
        let deletions = self.members.iter().map(|member| {
            let (scene, name) = (self.scene.clone(), member.name.clone());
            async move { scene.delete(&name, &DeleteParams::background()).await }
        });
        join_all(deletions).await;
    }
}

/// Whether a repetition of the request would be refused, too.
fn is_refusal(status: &Status) -> bool {
    matches!(status.code, 400 | 422)
}

/// Returns the values of the objects in a state, by name. A tainted object has the value `tainted`.
fn objects_of(state: &str) -> BTreeMap<String, String> {
    let state: Value = serde_json::from_str(state).expect("a state");
    let resources = state["resources"].as_array().expect("resources").clone();
    let instances = resources.iter().flat_map(|resource| {
        let instances = resource["instances"].as_array().expect("instances");
        instances
            .iter()
            .map(|instance| (&resource["name"], instance))
    });
    instances
        .map(|(name, instance)| {
            let value = match instance["status"].as_str() {
                Some(status) => status.to_owned(),
                None => text(&instance["attributes"]["input"]["value"]["value"]),
            };
            (text(name), value)
        })
        .collect()
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("a text: {value}"))
        .to_owned()
}
