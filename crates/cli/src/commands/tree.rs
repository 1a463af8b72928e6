//! `tree`: prints the dependency tree.

use std::collections::BTreeSet;

use alustan_api::ObjectKey;
use alustan_api::Terraform;
use clap::Args;

use crate::cluster::Cluster;
use crate::error::Error;
use crate::print;
use crate::tree::Graph;

/// Print the dependency tree, with state and reason of each resource.
#[derive(Debug, Args)]
pub(crate) struct Tree {
    /// Print only this resource, its dependencies and its dependents.
    name: Option<String>,
    /// Print all namespaces.
    #[arg(short = 'A', long, conflicts_with = "name")]
    all_namespaces: bool,
}

impl Tree {
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        if let Some(name) = &self.name {
            cluster.resource(name).await?;
        }
        let (graph, here) = if self.all_namespaces {
            let all = cluster.resources(None).await?;
            (Graph::of(&all, &BTreeSet::new()), "")
        } else {
            (self.graph(cluster).await?, cluster.namespace.as_str())
        };
        if graph.is_empty() {
            let scope = if here.is_empty() {
                "any namespace".to_owned()
            } else {
                format!("namespace {here}")
            };
            print::note(&format!("no Terraform resources found in {scope}"));
        }
        print::bytes(graph.render(here).as_bytes())
    }

    /// Returns the graph of the namespace, including dependencies in other namespaces that the user may list.
    async fn graph(&self, cluster: &Cluster) -> Result<Graph, Error> {
        let here = cluster.namespace.as_str();
        let own = cluster.resources(Some(here)).await?;
        let keys: Vec<ObjectKey> = match &self.name {
            Some(name) => vec![cluster.key(name)],
            None => own.iter().map(ObjectKey::of).collect(),
        };
        let (all, hidden) = with_others(cluster, own).await;
        Ok(Graph::of(&all, &hidden).around(keys, self.name.is_some()))
    }
}

/// Adds the resources of each namespace that the resources in `resources` reference, directly or indirectly. Returns all
/// resources, and the namespaces that the user cannot list.
async fn with_others(
    cluster: &Cluster,
    mut resources: Vec<Terraform>,
) -> (Vec<Terraform>, BTreeSet<String>) {
    let mut listed = BTreeSet::from([cluster.namespace.clone()]);
    let mut hidden = BTreeSet::new();
    loop {
        let named = Graph::of(&resources, &hidden).namespaces();
        let Some(next) = named.difference(&listed).next().cloned() else {
            return (resources, hidden);
        };
        match cluster.resources(Some(&next)).await {
            Ok(others) => resources.extend(others),
            Err(error) => {
                print::note(&error.chain());
                hidden.insert(next.clone());
            }
        }
        listed.insert(next);
    }
}
