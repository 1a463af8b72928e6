//! Tests of `deploy/` without a cluster: the chart rendered by helm and the overlays rendered by kubectl's kustomize are compared
//! with each other and validated against the schemas of Kubernetes. `make chart` installs the tools.

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_in_result,
    clippy::unwrap_used,
    reason = "a test may fail where it stands"
)]

mod chart;
mod compositions;
mod reach;
mod rendered;
mod same;
mod schemas;
