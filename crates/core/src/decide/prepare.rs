//! First phase of a decision: records the result of the last run, and determines the queries to repository and registry. The second phase,
//! [`decide`](super::decide), uses the same values.

use std::borrow::Cow;

use alustan_api::Terraform;
use alustan_api::report::Failure;
use alustan_api::run::{History, PinnedImage};
use k8s_openapi::jiff::Timestamp;

use crate::decide::restore;
use crate::decide::run_result::{self, RecordedResult};
use crate::model::allow_lists;
use crate::model::base_image::{self, UnresolvedBaseImage};
use crate::model::image::{self, ImagePlan};
use crate::observed::{Answer, Seen, SourceSeen};
use crate::settings::Settings;

/// Result of the first phase of a decision.
pub struct Prepared<'a> {
    /// The resource with its effective spec: `approval` includes what the allow lists and a restore require.
    pub(super) tf: Cow<'a, Terraform>,
    pub(super) seen: &'a Seen,
    pub(super) settings: &'a Settings,
    pub(super) now: Timestamp,
    /// Violation of the allow lists that prevents builds and runs.
    pub(super) refusal: Option<Failure>,
    /// Result of the last run, if this reconcile records it.
    pub(super) recorded: Option<RecordedResult>,
}

/// A query to repository or registry.
pub enum Query<Q, T> {
    /// The query must be sent.
    Needed(Q),
    /// No query must be sent, because this is the answer.
    Answered(Answer<T>),
}

impl<Q, T> Query<Q, T> {
    fn failed(failure: Failure, retry_at: Timestamp) -> Self {
        Self::Answered(Answer::Failed {
            failure,
            last: None,
            retry_at,
        })
    }
}

/// Prepares the decision of a reconcile of `tf` at `now`. `seen`: observed objects of the cluster.
pub fn prepare<'a>(
    tf: &'a Terraform,
    seen: &'a Seen,
    settings: &'a Settings,
    now: Timestamp,
) -> Prepared<'a> {
    let tf = effective(tf, seen);
    let refusal = allow_lists::refusal(&tf, &seen.allowed, &seen.accounts);
    let recorded = run_result::record_result(&tf, seen, settings, now);
    Prepared {
        tf,
        seen,
        settings,
        now,
        refusal,
        recorded,
    }
}

impl Prepared<'_> {
    /// Returns the observed objects of the cluster.
    pub fn seen(&self) -> &Seen {
        self.seen
    }

    /// Returns the query for commit and context. Answers it without the repository for a suspended resource, and for a resource without a
    /// pin that the allow lists refuse. `retry_at`: time of the next attempt, if the answer is a failure.
    pub fn source_query(&self, retry_at: Timestamp) -> Query<(), SourceSeen> {
        match self.query_refusal() {
            Some(refusal) => Query::failed(refusal.clone(), retry_at),
            None if self.tf.spec.suspend => Query::Answered(Answer::Pending),
            None => Query::Needed(()),
        }
    }

    /// Returns the query for the digest of the base image. Answers it without the registry if the history has the base image that the spec
    /// selects, if the catalogue does not have it, and in the cases of [`Self::source_query`]. `retry_at`: time of the next attempt, if the
    /// answer is a failure.
    pub fn base_query(&self, retry_at: Timestamp) -> Query<UnresolvedBaseImage, PinnedImage> {
        if let Some(refusal) = self.query_refusal() {
            return Query::failed(refusal.clone(), retry_at);
        }
        let pinned = self.history().and_then(|history| history.base.as_ref());
        match base_image::base_image(&self.tf, self.settings, pinned) {
            Ok(Ok(pinned)) => Query::Answered(Answer::Known(pinned)),
            Ok(Err(_)) if self.tf.spec.suspend => Query::Answered(Answer::Pending),
            Ok(Err(wanted)) => Query::Needed(wanted),
            Err(failure) => Query::failed(failure, retry_at),
        }
    }

    /// Returns the inputs of the image build. `None` until commit, base image and the uid of the namespace are known.
    pub fn plan(
        &self,
        source: &Answer<SourceSeen>,
        base: &Answer<PinnedImage>,
    ) -> Option<ImagePlan> {
        let namespace_uid = Some(&self.seen.namespace_uid).filter(|uid| !uid.is_empty())?;
        let recorded = self.history().and_then(|history| history.architecture);
        let architecture = self.settings.architecture_of(&self.tf, recorded);
        Some(image::plan(
            &self.tf,
            source.value()?,
            base.value()?,
            architecture,
            namespace_uid,
            self.settings,
        ))
    }

    /// Returns the query for the digest of the image of `plan`. Answers it without the registry if the pin has the image.
    pub fn digest_query(&self, plan: &ImagePlan) -> Query<(), Option<String>> {
        let pinned = image::pinned(&plan.tag, self.seen.pin.as_ref(), self.history());
        pinned.map_or(Query::Needed(()), |digest| {
            Query::Answered(Answer::Known(Some(digest.to_owned())))
        })
    }

    /// Whether the operator needs the token of the GitHub App for a pod that executes `init`: for the build of a missing image, whose `digest` is
    /// `None`, and for a destroy in the base image.
    pub fn needs_git_token(&self, digest: &Answer<Option<String>>) -> bool {
        let is_usable = self.tf.spec.github_app().is_some()
            && !self.tf.spec.suspend
            && self.query_refusal().is_none();
        let builds = matches!(digest, Answer::Known(None));
        let deleted = self.tf.metadata.deletion_timestamp.is_some();
        is_usable && (builds || deleted && self.destroys_in_base_image())
    }

    fn destroys_in_base_image(&self) -> bool {
        let record = self.seen.record.as_ref().map(|seen| &seen.record);
        let recorded = self.recorded.as_ref().map(|recorded| &recorded.record);
        let Some(record) = recorded.or(record) else {
            return false;
        };
        let is_active = record.run.as_ref().is_some_and(|run| run.unpack);
        let pin = self.seen.pin.as_ref();
        let pin = pin.map(|pin| pin.of_what_exists(record.attempted));
        let base = pin.zip(self.history()).and_then(|(pin, history)| {
            image::base_of_destroy(&self.tf, pin, history, self.settings)
        });
        is_active || base.is_some()
    }

    /// Returns the refusal by the allow lists if the resource has no pin. The operator then sends no query to its repository and registry.
    fn query_refusal(&self) -> Option<&Failure> {
        self.refusal.as_ref().filter(|_| self.seen.pin.is_none())
    }

    /// Returns the history with the result of the last run.
    fn history(&self) -> Option<&History> {
        let recorded = self.recorded.as_ref().map(|recorded| &recorded.history);
        recorded.or_else(|| Some(&self.seen.record.as_ref()?.history))
    }
}

/// Returns `tf` with the approvals that the allow lists require for a destroy, and a restore for the first plan.
fn effective<'a>(tf: &'a Terraform, seen: &Seen) -> Cow<'a, Terraform> {
    let tf =
        allow_lists::with_manual_destroy(tf, &seen.allowed).map_or(Cow::Borrowed(tf), Cow::Owned);
    let record = seen.record.as_ref();
    record
        .and_then(|record| restore::with_manual_first_plan(&tf, &record.history))
        .map_or(tf, Cow::Owned)
}
