//! Checks of the objects that a resource refers to: existence, conditions, expressions, deletion.

use alustan_api::report::Failure;
use alustan_api::{ObjectTest, ObjectsGone, Reason};
use alustan_core::dependency_graph;
use alustan_core::observed::TestSeen;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::jiff::SignedDuration;
use kube::ResourceExt;
use kube::api::DynamicObject;
use kube::core::Duration;
use serde_json::Value;

use crate::error::{Error, ReadResult};
use crate::observe::dependencies::evaluation::Dependencies;
use crate::watch::dynamic::{ListQuery, MAX_OBJECTS};
use crate::watch::object_selector::{NameOrLabels, ObjectSelector};

/// Maximum number of objects that a message names.
const MAX_NAMES: usize = 5;

impl Dependencies<'_> {
    pub(super) async fn tests(
        &mut self,
        list: &str,
        tests: &[ObjectTest],
    ) -> Result<Vec<TestSeen>, Error> {
        let mut seen = Vec::new();
        for (i, test) in tests.iter().enumerate() {
            let field = format!("{list}[{i}]");
            seen.push(TestSeen {
                result: self.test(&field, test).await?,
                timeout: signed(test.timeout),
                field,
            });
        }
        Ok(seen)
    }

    async fn test(&mut self, field: &str, test: &ObjectTest) -> ReadResult<()> {
        let selector = ObjectSelector {
            api_version: test.api_version.clone(),
            kind: test.kind.clone(),
            namespace: self.namespace(test.namespace.as_ref()),
            objects: value_or_return!(name_or_labels(
                field,
                test.name.as_ref(),
                test.selector.as_ref()
            )),
        };
        let own_namespace = self.observer.tf.namespace().unwrap_or_default();
        let description = selector.describe(&own_namespace);
        let (mut count, mut next) = (0, None);
        loop {
            let page = value_or_return!(self.find(field, &selector, ListQuery::Page(next)).await?);
            for object in &page.items {
                count += 1;
                if count > MAX_OBJECTS {
                    let message = format!(
                        "{field}.selector: {description} selects more than {MAX_OBJECTS} objects; add labels to the \
                         selector"
                    );
                    return Ok(Err(Failure::user(Reason::InvalidSelector, message)));
                }
                value_or_return!(self.passes(field, test, object).await);
            }
            next = page.next;
            if next.is_none() {
                break;
            }
        }
        if count == 0 {
            let message = format!(
                "{field}: {description} does not exist; reconciliation resumes automatically once it \
                     exists"
            );
            return Ok(Err(Failure::transient(Reason::ObjectNotFound, message)));
        }
        Ok(Ok(()))
    }

    async fn passes(
        &self,
        field: &str,
        test: &ObjectTest,
        object: &DynamicObject,
    ) -> Result<(), Failure> {
        let object_name = format!("{} {}", test.kind, object.name_any());
        if let Some(condition) = &test.condition {
            check_condition(field, &object_name, condition, object)?;
        }
        let Some(expression) = &test.cel else {
            return Ok(());
        };
        let cel_field = format!("{field}.cel");
        match self
            .evaluate(&cel_field, &object_name, expression, object)
            .await?
        {
            Value::Bool(true) => Ok(()),
            Value::Bool(false) => {
                let message =
                    format!("{cel_field}: the expression is false for {object_name}: {expression}");
                Err(Failure::transient(Reason::ObjectNotReady, message))
            }
            _ => {
                let message = format!("{cel_field}: the result of the expression is not a boolean");
                Err(Failure::user(Reason::InvalidExpression, message))
            }
        }
    }

    pub(super) async fn deletions(
        &mut self,
        objects: &[ObjectsGone],
    ) -> Result<Vec<TestSeen>, Error> {
        let mut seen = Vec::new();
        for (i, gone) in objects.iter().enumerate() {
            let field = format!("spec.destroyWaitFor[{i}]");
            seen.push(TestSeen {
                result: self.is_gone(&field, gone).await?,
                timeout: signed(gone.timeout),
                field,
            });
        }
        Ok(seen)
    }

    async fn is_gone(&mut self, field: &str, gone: &ObjectsGone) -> ReadResult<()> {
        let selector = ObjectSelector {
            api_version: gone.api_version.clone(),
            kind: gone.kind.clone(),
            namespace: self.namespace(gone.namespace.as_ref()),
            objects: value_or_return!(name_or_labels(
                field,
                gone.name.as_ref(),
                gone.selector.as_ref()
            )),
        };
        let own_namespace = self.observer.tf.namespace().unwrap_or_default();
        let description = selector.describe(&own_namespace);
        let mut page = match self
            .find(field, &selector, ListQuery::UnmanagedMetadata)
            .await?
        {
            Ok(page) => page,
            Err(failure) if failure.reason == Reason::KindNotFound => {
                return self.is_kind_gone(field, gone).await;
            }
            Err(failure) => return Ok(Err(failure)),
        };
        // Do not wait for the resource itself, which is deleted last.
        let own = self.observer.tf.uid();
        page.items.retain(|object| object.uid() != own);
        let more = page.items.len().saturating_sub(MAX_NAMES);
        let more = match page.next {
            Some(_) => Some(format!(
                "{description} selects more than {MAX_OBJECTS} objects"
            )),
            None if more > 0 => Some(format!("and {more} more")),
            None => None,
        };
        let named_objects = page.items.iter().take(MAX_NAMES);
        let named_objects = named_objects.map(|object| describe_remaining(&gone.kind, object));
        let remaining: Vec<_> = named_objects.chain(more).collect();
        if remaining.is_empty() {
            return Ok(Ok(()));
        }
        let message = format!(
            "{field}: waiting for the deletion of {}",
            remaining.join(", ")
        );
        Ok(Err(Failure::transient(Reason::WaitingForDeletion, message)))
    }

    /// Checks a kind that the API server does not know. Succeeds if the cluster does not have the API group of the kind: then no object of the kind
    /// exists. Fails if the cluster has the API group: the kind is probably misspelt.
    async fn is_kind_gone(&self, field: &str, gone: &ObjectsGone) -> ReadResult<()> {
        let objects = &self.observer.ctx.objects;
        if !objects.has_group(&gone.api_version).await? {
            return Ok(Ok(()));
        }
        let message = format!(
            "{field}: the cluster has no kind {} in {}. Correct apiVersion and kind, or remove the \
             entry",
            gone.kind, gone.api_version
        );
        Ok(Err(Failure::transient(Reason::KindNotFound, message)))
    }
}

/// Describes an object that is not deleted yet, with the finalizers that delay its deletion.
fn describe_remaining(kind: &str, object: &DynamicObject) -> String {
    let name = object.name_any();
    if object.metadata.deletion_timestamp.is_none() {
        return format!("{kind} {name} (not deleted yet)");
    }
    let finalizers = object.finalizers().join(", ");
    format!("{kind} {name} (being deleted; finalizers: {finalizers})")
}

fn check_condition(
    field: &str,
    object_name: &str,
    kind: &str,
    object: &DynamicObject,
) -> Result<(), Failure> {
    let conditions = object.data.pointer("/status/conditions");
    let mut conditions = conditions.and_then(Value::as_array).into_iter().flatten();
    let condition =
        conditions.find(|condition| condition.get("type").and_then(Value::as_str) == Some(kind));
    let text = |name: &str| {
        condition
            .and_then(|condition| condition.get(name))
            .and_then(Value::as_str)
    };
    match text("status") {
        Some("True") => Ok(()),
        Some(status) => {
            let causes = [text("reason"), text("message")].into_iter().flatten();
            let causes: Vec<_> = causes.collect();
            let message = format!(
                "{field}.condition: {object_name} has {kind}={status}: {}",
                causes.join(": ")
            );
            Err(Failure::transient(Reason::ObjectNotReady, message))
        }
        None => {
            let message = format!("{field}.condition: {object_name} has no condition {kind} yet");
            Err(Failure::transient(Reason::ObjectNotReady, message))
        }
    }
}

fn name_or_labels(
    field: &str,
    name: Option<&String>,
    selector: Option<&LabelSelector>,
) -> Result<NameOrLabels, Failure> {
    if let Some(name) = name {
        return Ok(NameOrLabels::Name(name.clone()));
    }
    let selector = dependency_graph::selector(selector);
    let selector = selector
        .map_err(|error| Failure::user(Reason::InvalidSelector, format!("{field}.{error}")))?;
    Ok(NameOrLabels::Labels(selector.to_string()))
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(std::time::Duration::from(duration)).unwrap_or(SignedDuration::MAX)
}
