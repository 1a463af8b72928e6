//! Condition `DependenciesReady` and `status.blockedBy`.

use alustan_api::conditions::{Kind, Verdict};
use alustan_api::report::Failure;
use alustan_api::{BlockedBy, Reason};

use crate::observed::{DependencySeen, Readiness, StackSeen, TestSeen};

/// Returns reason and message if `dependency` is not ready.
pub(crate) fn obstacle(dependency: &DependencySeen) -> Option<(Reason, String)> {
    let DependencySeen {
        field,
        name,
        readiness,
    } = dependency;
    match readiness {
        Readiness::Ready => None,
        Readiness::Missing => Some((
            Reason::DependencyNotFound,
            format!(
                "{field}: Terraform resource {name} does not exist; reconciliation resumes \
                 automatically once it exists"
            ),
        )),
        Readiness::NotReady { reason, message } => Some((
            Reason::DependencyNotReady,
            format!("{field}: {name} is not ready ({reason}: {message})"),
        )),
    }
}

/// Returns `status.blockedBy`.
pub(crate) fn blocked_by(seen: &StackSeen) -> Vec<BlockedBy> {
    let dependencies = seen.dependencies.iter().filter_map(|dependency| {
        let reason = match &dependency.readiness {
            Readiness::Ready => return None,
            Readiness::Missing => Reason::DependencyNotFound.as_str(),
            Readiness::NotReady { reason, .. } => reason,
        };
        Some((&dependency.name, reason))
    });
    let dependents = seen
        .dependents
        .iter()
        .map(|name| (name, Reason::Dependent.as_str()));
    dependencies
        .chain(dependents)
        .map(|(name, reason)| BlockedBy {
            name: name.clone(),
            reason: reason.to_owned(),
        })
        .collect()
}

/// Returns the condition `DependenciesReady`.
pub(crate) fn dependencies_ready(seen: &StackSeen) -> Verdict {
    let kind = Kind::DependenciesReady;
    let mut dependencies = seen.dependencies.iter().filter_map(obstacle);
    if let Some((reason, message)) = dependencies.next() {
        return Verdict::new(kind, false, reason, message);
    }
    let tests = seen.wait_for.iter().filter_map(failure_of);
    let missing = seen.variables.missing.iter();
    if let Some(failure) = missing.chain(tests.map(|(_, failure)| failure)).next() {
        return Verdict::new(kind, false, &failure.reason, &failure.message);
    }
    if seen.dependencies.is_empty() && seen.wait_for.is_empty() {
        return Verdict::new(kind, true, Reason::NoDependencies, "");
    }
    Verdict::new(kind, true, Reason::DependenciesReady, "")
}

pub(crate) fn failure_of(test: &TestSeen) -> Option<(&TestSeen, &Failure)> {
    Some((test, test.result.as_ref().err()?))
}
