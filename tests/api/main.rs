//! Tests on a real etcd and kube-apiserver: CRD schema and rules, field ownership, RBAC, and behaviour of the operator that needs no node.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_in_result,
    clippy::unwrap_used,
    reason = "a test may fail where it stands"
)]

mod as_operator;
mod browser;
mod build_namespace;
mod calls;
mod cli;
mod crd;
mod defaults;
mod fake_github;
mod fake_kubelet;
mod fault_proxy;
mod ha;
mod kubectl;
mod load;
mod mutate;
mod namespaced;
mod objects;
mod operator;
mod outage;
mod outside;
mod ownership;
mod page;
mod page_in_cluster;
mod page_oauth2_proxy;
mod pinned;
mod pod_options;
mod policies;
mod restore;
mod rights;
mod rules;
mod run_records;
mod samples;
mod server;
mod signatures;
mod space;
mod sync;
mod tenancy;
mod ui;
mod upgrade;
