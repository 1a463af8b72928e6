//! Reads objects that a resource refers to, and evaluates expressions on them, in one reconcile.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use alustan_api::ObjectKey;
use alustan_api::report::Failure;
use alustan_api::{Reason, Terraform};
use alustan_cel::Nothing;
use alustan_core::dependency_graph::DependencyGraph;
use alustan_core::objects::outputs;
use alustan_core::observed::StackSeen;
use alustan_core::upstream_changes;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::context::Context;
use crate::error::{Error, ReadResult};
use crate::observe::observer::Observer;
use crate::resource::is_made_for;
use crate::watch::dynamic::{ListQuery, ObjectQuery, Page};
use crate::watch::object_selector::ObjectSelector;
use crate::watch::trim::is_content_removed;

/// Maximum time to evaluate all expressions of one reconcile, including the wait for child processes. Must be shorter than
/// `health::RECONCILE_TIMEOUT`, after which the liveness probe fails.
pub(crate) const EVALUATION_TIMEOUT: Duration = Duration::from_mins(3);

/// Dependencies of one resource in one reconcile.
pub(crate) struct Dependencies<'a> {
    pub(super) observer: &'a Observer<'a>,
    /// Dependency graph of all resources that this version of the operator can parse.
    pub(super) graph: DependencyGraph<'a>,
    pub(super) used_objects: HashSet<ObjectSelector>,
    /// Size of the outputs Secrets that were read, in bytes.
    pub(super) outputs_read: usize,
    pub(super) evaluates_until: Instant,
}

impl Dependencies<'_> {
    /// Returns the versions of the outputs Secrets that the resource uses, and the name of a dependency whose outputs may change soon, for
    /// example because an apply of the dependency is active.
    pub(super) fn upstream(&mut self) -> (BTreeMap<ObjectKey, String>, Option<String>) {
        let Observer { ctx, tf, .. } = *self.observer;
        if tf.spec.variables_from.is_empty() {
            return Default::default();
        }
        let version = |source: &Terraform| {
            let outputs = outputs_secret(ctx, source)?;
            Some(format!(
                "{:?} {:?}",
                outputs.uid(),
                outputs.resource_version()
            ))
        };
        let graph = &mut self.graph;
        let changing = ctx.upstream_activity.changing(tf, graph, version);
        let own_namespace = tf.namespace().unwrap_or_default();
        let changing = changing.map(|key| key.seen_from(&own_namespace));
        (upstream_changes::versions(tf, graph, version), changing)
    }

    /// Ends the watches that the resource no longer uses. Sets `seen.unwatched` if the resource refers to objects without a watch.
    pub(super) fn with_watches(&self, seen: StackSeen) -> StackSeen {
        let Observer { ctx, resource, .. } = *self.observer;
        StackSeen {
            unwatched: !ctx.objects.keep(resource, &self.used_objects),
            ..seen
        }
    }

    /// Reads the outputs Secrets of dependencies from the API server, if the watch cache has them without content.
    pub(super) async fn read_missing_outputs(&mut self) -> Result<(), Error> {
        let Observer { ctx, tf, .. } = *self.observer;
        for reference in &*self.graph.references(tf) {
            if let Some(source) = self.graph.get(&reference.key) {
                let namespace = &reference.key.namespace;
                let name = outputs::name(source);
                ctx.mirrors.secret(&ctx.client, namespace, &name).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn find(
        &mut self,
        field: &str,
        selector: &ObjectSelector,
        query: ListQuery,
    ) -> ReadResult<Page> {
        let Observer { ctx, resource, .. } = *self.observer;
        let is_first = self.used_objects.insert(selector.clone());
        let query = ObjectQuery {
            field,
            selector,
            list: query,
            is_first,
            may_reuse: self.observer.may_reuse(true),
        };
        let page = ctx.objects.find(query, resource).await?;
        if page.as_ref().is_ok_and(|page| page.is_reused) {
            self.observer.record_reuse();
        }
        Ok(page)
    }

    pub(super) fn namespace(&self, namespace: Option<&String>) -> String {
        let own_namespace = || self.observer.tf.namespace().unwrap_or_default();
        namespace.cloned().unwrap_or_else(own_namespace)
    }

    /// Evaluates `expression` on `object`. Failures name `field` and `object_name`.
    pub(super) async fn evaluate(
        &self,
        field: &str,
        object_name: &str,
        expression: &str,
        object: &DynamicObject,
    ) -> Result<Value, Failure> {
        let namespace = self.namespace(None);
        let evaluator = &self.observer.ctx.evaluator;
        let evaluation = Box::pin(evaluator.evaluate(&namespace, expression, object));
        let Ok(result) = timeout_at(self.evaluates_until, evaluation).await else {
            let seconds = EVALUATION_TIMEOUT.as_secs();
            let message = format!(
                "{field}: the expressions of this resource were not evaluated within {seconds} s, \
                 including the wait for evaluations of other resources"
            );
            return Err(Failure::transient(Reason::ExpressionTooSlow, message));
        };
        result.map_err(|error| match &error {
            Nothing::Invalid(cause) => Failure::user(
                Reason::InvalidExpression,
                format!("{field}: {cause}: {expression}"),
            ),
            // A missing field is probably in the data of the Secret: the operator reads only the metadata, so that expressions cannot read secret
            // values.
            Nothing::Missing(_) if object_name.starts_with("Secret ") => Failure::user(
                Reason::InvalidExpression,
                format!(
                    "{field}: {object_name} does not have a field of the expression: {expression}; the \
                     operator reads only the metadata of Secrets"
                ),
            ),
            Nothing::Missing(cause) => Failure::transient(
                Reason::FieldNotFound,
                format!(
                    "{field}: {object_name} does not have a field of the expression yet ({cause}): \
                     {expression}"
                ),
            ),
            Nothing::TooSlow => Failure::transient(
                Reason::ExpressionTooSlow,
                format!(
                    "{field}: {error} for {object_name}: {expression}; reduce the number of elements \
                     that the expression iterates over"
                ),
            ),
            Nothing::Unknown(cause) => {
                Failure::transient(Reason::ExpressionAborted, format!("{field}: {cause}"))
            }
        })
    }
}

/// Returns the outputs Secret of `tf`. `None` if the Secret does not exist, belongs to another owner, or is cached without content.
pub(super) fn outputs_secret(ctx: &Context, tf: &Terraform) -> Option<Arc<Secret>> {
    let namespace = tf.namespace().unwrap_or_default();
    let secret = ctx.mirrors.known_secret(&namespace, &outputs::name(tf));
    secret.filter(|secret| is_made_for(tf, &**secret) && !is_content_removed(&**secret))
}
