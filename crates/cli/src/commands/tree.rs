//! `tree`: who depends on whom.

use std::collections::BTreeSet;

use alustan_api::Terraform;
use alustan_core::observed::Key;
use clap::Args;

use crate::cluster::Cluster;
use crate::error::Error;
use crate::print;
use crate::tree::Graph;

/// Print who depends on whom, and how everyone is.
#[derive(Debug, Args)]
pub(crate) struct Tree {
    /// Only this resource, what it depends on, and what depends on it.
    name: Option<String>,
    /// All namespaces.
    #[arg(short = 'A', long, conflicts_with = "name")]
    all_namespaces: bool,
}

impl Tree {
    /// Prints it.
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
            let place = if here.is_empty() {
                "any namespace".to_owned()
            } else {
                format!("namespace {here}")
            };
            eprintln!("there is no Terraform resource in {place}");
        }
        print::bytes(graph.render(here).as_bytes())
    }

    /// The graph of the namespace, with what is named in others as far as it can be seen.
    async fn graph(&self, cluster: &Cluster) -> Result<Graph, Error> {
        let here = cluster.namespace.as_str();
        let own = cluster.resources(Some(here)).await?;
        let keys: Vec<Key> = match &self.name {
            Some(name) => vec![cluster.key(name)],
            None => own.iter().map(Key::of).collect(),
        };
        let (all, hidden) = with_others(cluster, own).await;
        Ok(Graph::of(&all, &hidden).around(keys, self.name.is_some()))
    }
}

/// `found`, and the resources of every namespace that is named on the way; the namespaces that
/// cannot be listed.
async fn with_others(
    cluster: &Cluster,
    mut found: Vec<Terraform>,
) -> (Vec<Terraform>, BTreeSet<String>) {
    let mut listed = BTreeSet::from([cluster.namespace.clone()]);
    let mut hidden = BTreeSet::new();
    loop {
        let named = Graph::of(&found, &hidden).namespaces();
        let Some(next) = named.difference(&listed).next().cloned() else {
            return (found, hidden);
        };
        match cluster.resources(Some(&next)).await {
            Ok(others) => found.extend(others),
            Err(error) => {
                eprintln!("{}", error.chain());
                hidden.insert(next.clone());
            }
        }
        listed.insert(next);
    }
}
