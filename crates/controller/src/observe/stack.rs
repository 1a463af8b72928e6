//! What a resource takes values from, waits for, and stands before.

mod objects;
mod variables;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use alustan_api::Terraform;
use alustan_api::report::{Failure, FailureClass};
use alustan_core::objects::outputs;
use alustan_core::references::{self};
use alustan_core::seen::Key;
use alustan_core::seen::StackSeen;
use alustan_core::upstream;
use alustan_expressions::Nothing;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::Session;
use super::inputs::waits;
use crate::error::{Error, Found};
use crate::objects::{Page, Query, Which};
use crate::{is_made_for, readable};
pub(crate) use variables::LARGEST_VALUES;

/// Maximum time to evaluate all expressions of one reconcile, including the wait for child processes. Must be below
/// `HUNG`.
const EXPRESSIONS: Duration = Duration::from_mins(3);

/// One look at a stack.
struct Stack<'a> {
    session: &'a Session<'a>,
    /// All resources that can be read.
    all: Vec<&'a Terraform>,
    used: HashSet<Which>,
    evaluates_until: Instant,
}

/// What `tf` of the `session` has to do with other objects. Where its references are refused,
/// nothing is looked at, and why they are is the second.
pub(super) async fn see(session: &Session<'_>) -> Result<(StackSeen, Option<Failure>), Error> {
    let tf = session.tf;
    let resources = session.cx.resources.state();
    let all: Vec<_> = readable(&resources).collect();
    let deleted = tf.metadata.deletion_timestamp.is_some();
    let cross_namespace = session.cx.settings.cross_namespace_refs;
    let here = tf.namespace().unwrap_or_default();
    let mut stack = Stack {
        session,
        all,
        used: HashSet::new(),
        evaluates_until: Instant::now() + EXPRESSIONS,
    };
    let dependents = if deleted {
        references::dependents(tf, stack.all.iter().copied(), cross_namespace)
    } else {
        Vec::new()
    };
    let dependents = dependents.iter().map(|key| key.seen_from(&here)).collect();
    let checked = references::check(tf, stack.all.iter().copied(), cross_namespace);
    if let Err(refused) = checked {
        session.cx.objects.keep(session.who, &HashSet::new());
        let seen = StackSeen {
            dependents,
            ..StackSeen::default()
        };
        return Ok((seen, Some(refused)));
    }
    // Before the values themselves: what changes after it is seen by the next look.
    let (versions, changing) = stack.upstream();
    let variables = stack.variables().await?;
    let seen = if deleted {
        StackSeen {
            dependents,
            versions,
            variables,
            destroy_wait_for: stack.gone(&tf.spec.destroy_wait_for).await?,
            ..StackSeen::default()
        }
    } else {
        let checks = &tf.spec.health_checks;
        StackSeen {
            dependencies: references::dependencies(tf, stack.all.iter().copied()),
            versions,
            changing,
            variables,
            wait_for: stack.tests("spec.waitFor", &tf.spec.wait_for).await?,
            health_checks: stack.tests("spec.healthChecks", checks).await?,
            ..StackSeen::default()
        }
    };
    session.cx.objects.keep(session.who, &stack.used);
    Ok((seen, None))
}

impl Stack<'_> {
    /// The versions of the outputs that are taken, and who may soon have others.
    fn upstream(&self) -> (BTreeMap<Key, String>, Option<String>) {
        let Session { cx, tf, .. } = *self.session;
        if tf.spec.variables_from.is_empty() {
            return Default::default();
        }
        let all = self.all.iter().map(|it| (Key::of(it), *it)).collect();
        let version = |it: &Terraform| {
            let outputs = self.outputs_secret(it)?;
            Some(format!(
                "{:?} {:?}",
                outputs.uid(),
                outputs.resource_version()
            ))
        };
        let changing = cx.looks.changing(tf, &all, version);
        let here = tf.namespace().unwrap_or_default();
        let changing = changing.map(|key| key.seen_from(&here));
        (upstream::versions(tf, &all, version), changing)
    }

    /// The Secret with the outputs of `tf`.
    fn outputs_secret(&self, tf: &Terraform) -> Option<Arc<Secret>> {
        let namespace = tf.namespace().unwrap_or_default();
        let secrets = &self.session.cx.mirrors.secrets;
        let secret = secrets.get(&namespace, &outputs::name(tf));
        secret.filter(|secret| is_made_for(tf, &**secret))
    }

    async fn find(&mut self, field: &str, which: &Which, query: Query) -> Found<Page> {
        let Session { cx, who, .. } = *self.session;
        let found = cx.objects.find(field, which, who, query).await;
        self.used.insert(which.clone());
        found
    }

    fn namespace(&self, of: Option<&String>) -> String {
        let own = || self.session.tf.namespace().unwrap_or_default();
        of.cloned().unwrap_or_else(own)
    }

    /// What `expression` gives for `object`.
    async fn evaluate(
        &self,
        place: &str,
        named: &str,
        expression: &str,
        object: &DynamicObject,
    ) -> Result<Value, Failure> {
        let namespace = self.namespace(None);
        let evaluator = &self.session.cx.evaluator;
        let evaluated = Box::pin(evaluator.evaluate(&namespace, expression, object));
        let Ok(evaluated) = timeout_at(self.evaluates_until, evaluated).await else {
            let seconds = EXPRESSIONS.as_secs();
            let message = format!(
                "{place}: evaluating the expressions of this resource, including the wait for other \
                 resources in its namespace, takes longer than {seconds} s"
            );
            return Err(waits("ExpressionTooSlow", message));
        };
        evaluated.map_err(|nothing| match &nothing {
            Nothing::Invalid(why) => {
                wrong("InvalidExpression", format!("{place}: {why}: {expression}"))
            }
            // They are read without their data.
            Nothing::Missing(_) if named.starts_with("Secret ") => wrong(
                "InvalidExpression",
                format!("{place}: of Secrets only the metadata is read: {expression}"),
            ),
            Nothing::Missing(why) => waits(
                "FieldNotFound",
                format!("{place}: {named} has no such field yet ({why}): {expression}"),
            ),
            Nothing::TooSlow => waits(
                "ExpressionTooSlow",
                format!(
                    "{place}: {nothing} for {named}: {expression}; reduce the number of elements \
                     that the expression iterates over"
                ),
            ),
            Nothing::Unknown(why) => waits("ExpressionLost", format!("{place}: {why}")),
        })
    }
}

fn wrong(reason: &str, message: String) -> Failure {
    Failure {
        class: FailureClass::User,
        reason: reason.to_owned(),
        message,
    }
}
