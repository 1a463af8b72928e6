//! What `deploy/` comes to, without a cluster: the chart by helm, the overlays by kubectl's kustomize, both held
//! against each other and against the schemas of Kubernetes. `make chart` brings the tools.

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_in_result,
    clippy::unwrap_used,
    reason = "a test may fail where it stands"
)]

mod chart;
mod reach;
mod rendered;
mod same;
mod schemas;
