//! Creates repositories, namespaces and resources.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use alustan_api::Terraform;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;

use super::progress::Seen;
use super::size::{self, Member, VARIABLES};
use super::{CONCURRENCY, Calls, LABEL, OWNER, Scale, patience};
use crate::Cluster;
use crate::scene::repositories::write;

/// Number of resources that are created together. At most three groups are not Ready at the same time: with thousands of queued resources, most
/// requests would be updates of queue positions.
const GROUP: usize = 200;

/// Result of [`Scale::fill`].
#[derive(Clone, Debug)]
pub struct Filled {
    /// Time from the first created resource until all are Ready.
    pub time: Duration,
    /// Requests of the operator and of runs, including those for builds.
    pub calls: Calls,
    /// Number of builds on the fake node.
    pub builds: usize,
}

impl Scale {
    /// Creates all resources and waits until each is applied.
    pub async fn fill(&mut self) -> Filled {
        self.commit_all().await;
        self.create_namespaces().await;
        self.log.skip();
        let start = Instant::now();
        let members: Vec<_> = self.size.members().collect();
        let groups: Vec<_> = members.chunks(GROUP).collect();
        for (number, group) in groups.iter().enumerate() {
            self.each(group, async |api, member| {
                let tf = serde_json::from_value(member.resource()).expect("a resource");
                let created = api.create(&PostParams::default(), &tf).await;
                created.expect("create the resource");
            })
            .await;
            if let Some(earlier) = number.checked_sub(2) {
                self.until_ready(groups[earlier]).await;
                eprintln!(
                    "  {:>5} s: {} are Ready",
                    start.elapsed().as_secs(),
                    (earlier + 1) * GROUP
                );
            }
        }
        self.until_ready(&members).await;
        let time = start.elapsed();
        self.settle().await;
        Filled {
            time,
            calls: Calls::of(&self.log.requests(), members.len()),
            builds: self.kubelet.build_count(),
        }
    }

    async fn until_ready(&self, members: &[Member]) {
        let limit = patience(members.len());
        let is_ready = |seen: &Seen| seen.is_ready;
        self.progress.until("Ready", members, limit, is_ready).await;
    }

    /// Calls `request` for each of `members`, with bounded concurrency.
    pub(super) async fn each(
        &self,
        members: &[Member],
        request: impl AsyncFn(Api<Terraform>, Member),
    ) {
        stream::iter(members)
            .for_each_concurrent(CONCURRENCY, async |member| {
                let api = Api::namespaced(self.cluster.client.clone(), &member.namespace());
                request(api, *member).await;
            })
            .await;
    }

    /// Changes a variable of each of `members`.
    pub(super) async fn change(&self, members: &[Member], generation: usize) {
        self.each(members, async |api, member| {
            let variables = size::variables(&member.name(), generation);
            let change = json!({"spec": {"variables": variables}});
            let (parameters, change) = (PatchParams::default(), Patch::Merge(&change));
            let changed = api.patch(&member.name(), &parameters, &change).await;
            changed.expect("change the resource");
        })
        .await;
    }

    async fn commit_all(&self) {
        for number in 0..self.size.repositories {
            let name = size::repository(number);
            commit(&self.cluster, &name, |folder| {
                write(folder, &[("main.tf", &module(&name))]);
            })
            .await;
        }
        commit(&self.cluster, "real", |folder| {
            write(folder, &[("main.tf", &module("real"))]);
        })
        .await;
        self.commit_monorepo(0).await;
    }

    /// Commits the monorepo. The first modules call a shared module, whose text contains `version`.
    pub(super) async fn commit_monorepo(&self, version: usize) -> String {
        let size = self.size;
        commit(&self.cluster, "mono", |folder| {
            let shared = format!(
                "resource \"terraform_data\" \"shared\" {{ input = \"version {version}\" }}\n"
            );
            write(folder, &[("modules/shared/main.tf", &shared)]);
            for number in 0..size.modules {
                let path = size::module_path(number);
                let mut text = module(&path);
                if number < size.concerned() {
                    text.push_str("module \"shared\" { source = \"../shared\" }\n");
                }
                write(folder, &[(&format!("{path}/main.tf"), &text)]);
            }
        })
        .await
    }

    async fn create_namespaces(&self) {
        let api: Api<Namespace> = Api::all(self.cluster.client.clone());
        for number in 0..self.size.namespaces {
            let namespace = json!({
                "metadata": {"name": size::namespace(number), "labels": {
                    LABEL: "true", "pod-security.kubernetes.io/enforce": "baseline",
                }},
            });
            let namespace = serde_json::from_value(namespace).expect("a namespace");
            let created = api.create(&PostParams::default(), &namespace).await;
            created.expect("create the namespace");
        }
    }
}

/// Commits the files that `write` writes to the repository `name`, and reports the push to the operator. Returns the commit.
async fn commit(cluster: &Cluster, name: &str, write: impl FnOnce(&Path)) -> String {
    let repository = format!("{OWNER}/{name}");
    let commit = cluster.commit(&repository, write).await;
    cluster.report_push(&repository).await;
    commit
}

/// Returns the text of a module with [`VARIABLES`] variables, an object for each, and an output.
fn module(name: &str) -> String {
    let mut text = format!("# {name}\n");
    for number in 0..VARIABLES {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "variable \"setting_{number:02}\" {{\n  type = string\n}}\n\
             resource \"terraform_data\" \"object_{number:02}\" {{\n  input = var.setting_{number:02}\n}}\n"
        );
    }
    text.push_str("output \"result\" {\n  value = var.setting_00\n}\n");
    text
}
