//! The writes of one reconcile.

use std::borrow::Cow;

use alustan_api::Terraform;
use alustan_core::observed::RecordSeen;
use k8s_openapi::ByteString;
use serde::Serialize;

use crate::context::Context;
use crate::observe::session::Observer;

/// One pass of writes for one resource.
pub(crate) struct StepExecutor<'a> {
    pub(crate) cx: &'a Context,
    pub(crate) tf: &'a Terraform,
    pub(crate) session: &'a Observer<'a>,
    /// The record's version: as seen, then as written by the last swap of this pass.
    pub(super) version: Option<String>,
    /// The same of the report.
    pub(super) report_version: Option<String>,
    /// What it says, the same way.
    pub(super) record: Option<Cow<'a, RecordSeen>>,
}

pub(crate) fn encoded(value: &impl Serialize) -> ByteString {
    ByteString(serde_json::to_vec(value).unwrap_or_default())
}
