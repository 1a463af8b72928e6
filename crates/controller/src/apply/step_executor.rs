//! The executor of the steps of one reconcile.

use std::borrow::Cow;

use alustan_api::Terraform;
use alustan_core::observed::RecordSeen;
use k8s_openapi::ByteString;
use serde::Serialize;

use crate::context::Context;
use crate::observe::observer::Observation;
use crate::resource::Ref;

/// Executes the steps of one reconcile of one resource.
pub(crate) struct StepExecutor<'a> {
    pub(crate) ctx: &'a Context,
    pub(crate) tf: &'a Terraform,
    pub(super) resource: &'a Ref,
    pub(super) observation: &'a Observation,
    /// Resource version of the run record: the observed one, or the newer one from the last write of this reconcile.
    pub(super) version: Option<String>,
    /// Resource version of the run report: the observed one, or the newer one from the last write of this reconcile.
    pub(super) report_version: Option<String>,
    /// Run record: the observed one, or the newer one that this reconcile wrote last.
    pub(super) record: Option<Cow<'a, RecordSeen>>,
}

pub(crate) fn encoded(value: &impl Serialize) -> ByteString {
    ByteString(serde_json::to_vec(value).unwrap_or_default())
}
