//! Rights: compares the roles of operator and runners with the API server's audit log.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::api::Api;
use serde_json::Value;

use crate::audit::OPERATOR;
use crate::{AuditLog, Cluster};

/// `ClusterRole` of the operator.
const CONTROLLER: &str = "alustan-controller";
/// Role of the operator in the namespace of its Lease.
const LEASE: &str = "alustan-controller-lease";
/// Prefix of the namespaces in which modules make forbidden calls: `tests/e2e/attack.rs`.
const ATTACKS: &str = "e2e-attack-";
/// Suffix of the Role and the ServiceAccount of a resource's runs.
const RUNNER: &str = "-runner";
/// Verbs that the Role of a run grants for Secrets. The operator has the same rights, because Kubernetes allows a client to create a Role
/// only if the client has all rights of the Role.
const OF_RUNS: [&str; 2] = ["get", "patch"];
/// Rights that no e2e test uses. The operator reads a `Terraform` resource with `get` if the resource is deleted and cannot be parsed
/// (`tests/api/operator.rs`). It reads a `PersistentVolumeClaim`, or the Job of a run that a pod has claimed, with `get` if its watch cache
/// does not contain the object.
const RARE: [[&str; 3]; 3] = [
    ["alustan.io", "terraforms", "get"],
    ["", "persistentvolumeclaims", "get"],
    ["batch", "jobs", "get"],
];

/// Right to call a verb on an API resource. RBAC rules grant rights, and calls require them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// API group; empty for the core group.
    pub group: String,
    /// Resource with its subresource, for example `pods/log`.
    pub resource: String,
    /// Verb of the API.
    pub verb: String,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, resource) = (&self.verb, &self.resource);
        match self.group.as_str() {
            "" => write!(f, "{verb} {resource}"),
            group => write!(f, "{verb} {resource}.{group}"),
        }
    }
}

/// Call to the API server that concerns an object.
#[derive(Clone, Debug)]
pub struct Call {
    /// User name of the caller.
    pub user: String,
    /// Right that the call requires.
    pub right: Right,
    /// Namespace of the object; empty if it is cluster-scoped.
    pub namespace: String,
    /// Name of the Role or `ClusterRole` that allowed the call.
    pub role: Option<String>,
    /// Whether no role allowed the call. False if a quota or a policy refused the call.
    pub forbidden: bool,
    /// Time, verb and URI of the call, for messages.
    pub what: String,
}

/// Selects the calls that concern objects from the `events` of an audit log. Returns two calls for a patch that created an object, because
/// the patch uses the rights `patch` and `create`.
pub fn calls(events: impl IntoIterator<Item = Value>) -> impl Iterator<Item = Call> {
    events.into_iter().flat_map(|event| {
        let call = call(&event);
        let created = event["verb"] == "patch" && event["responseStatus"]["code"] == 201;
        let created = call.clone().filter(|_| created).map(|call| Call {
            right: Right {
                verb: "create".to_owned(),
                ..call.right
            },
            ..call
        });
        call.into_iter().chain(created)
    })
}

fn call(event: &Value) -> Option<Call> {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = event.get("objectRef")?;
    let acting = event
        .get("impersonatedUser")
        .unwrap_or_else(|| &event["user"]);
    let resource = word(&object["resource"]);
    let notes = &event["annotations"];
    let reason = word(&notes["authorization.k8s.io/reason"]);
    Some(Call {
        user: word(&acting["username"]),
        right: Right {
            group: word(&object["apiGroup"]),
            resource: match object["subresource"].as_str() {
                Some(part) => format!("{resource}/{part}"),
                None => resource,
            },
            verb: word(&event["verb"]),
        },
        namespace: word(&object["namespace"]),
        role: role(&reason),
        forbidden: notes["authorization.k8s.io/decision"] == "forbid",
        what: format!(
            "{} {} {}",
            event["stageTimestamp"], event["verb"], event["requestURI"]
        ),
    })
}

/// Parses the role in `RBAC: allowed by RoleBinding "b/team" of Role "r" to …`.
fn role(reason: &str) -> Option<String> {
    let (_, rest) = reason.split_once("Role \"")?;
    Some(rest.split_once('"')?.0.to_owned())
}

/// Returns the rights that `rules` grant.
pub fn granted<'a>(rules: impl IntoIterator<Item = &'a PolicyRule>) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for rule in rules {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                for verb in &rule.verbs {
                    rights.insert(Right {
                        group: group.clone(),
                        resource: resource.clone(),
                        verb: verb.clone(),
                    });
                }
            }
        }
    }
    rights
}

/// Returns the used rights by the name of the role that granted them.
pub fn used<'a>(calls: impl IntoIterator<Item = &'a Call>) -> BTreeMap<String, BTreeSet<Right>> {
    let mut rights: BTreeMap<String, BTreeSet<Right>> = BTreeMap::new();
    for call in calls {
        if let Some(role) = &call.role {
            rights
                .entry(role.clone())
                .or_default()
                .insert(call.right.clone());
        }
    }
    rights
}

fn right([group, resource, verb]: [&str; 3]) -> Right {
    Right {
        group: group.to_owned(),
        resource: resource.to_owned(),
        verb: verb.to_owned(),
    }
}

/// Audit log of the dev cluster from a point in time.
pub struct Audit {
    cluster: Cluster,
    log: AuditLog,
}

impl Audit {
    /// Starts at the current end of the log.
    pub fn begin(cluster: &Cluster) -> Self {
        Self {
            cluster: cluster.clone(),
            log: AuditLog::open(cluster),
        }
    }

    /// Returns a message for each violation since the start. A call that no role allowed is a violation if the operator made it on an API
    /// resource in its roles, or if a run made it on a Secret. With `all`, a right that was never used is a violation as well.
    pub async fn end(mut self, all: bool) -> Vec<String> {
        let client = self.cluster.client;
        let controller = Api::<ClusterRole>::all(client.clone())
            .get(CONTROLLER)
            .await
            .expect("a ClusterRole");
        let lease = Api::<Role>::namespaced(client, "alustan-system")
            .get(LEASE)
            .await
            .expect("a Role");
        let roles = Roles {
            controller: granted(controller.rules.iter().flatten()),
            lease: granted(lease.rules.iter().flatten()),
        };
        let mut all_calls = Vec::new();
        self.log
            .each(|entry| all_calls.extend(calls(serde_json::from_str(entry))));
        roles.compare(&all_calls, all)
    }
}

/// Rights that the operator's roles grant.
struct Roles {
    controller: BTreeSet<Right>,
    lease: BTreeSet<Right>,
}

impl Roles {
    fn compare(&self, calls: &[Call], all: bool) -> Vec<String> {
        let about = |required: &Right| (required.group.clone(), required.resource.clone());
        let known: BTreeSet<_> = self
            .controller
            .iter()
            .chain(&self.lease)
            .map(about)
            .collect();
        let forbidden = calls.iter().filter(|call| call.forbidden).filter(|call| {
            let of_a_run = call.user.ends_with(RUNNER)
                && !call.namespace.starts_with(ATTACKS)
                && call.right.resource == "secrets"
                && OF_RUNS.contains(&call.right.verb.as_str());
            // A forbidden call that the roles grant is no violation: some tests uninstall the roles for a while.
            let missing =
                !self.controller.contains(&call.right) && !self.lease.contains(&call.right);
            of_a_run || call.user == OPERATOR && missing && known.contains(&about(&call.right))
        });
        let mut wrong: Vec<String> = forbidden
            .map(|call| format!("forbidden: {} of {}: {}", call.right, call.user, call.what))
            .collect();
        if all {
            wrong.extend(self.unused(calls));
        }
        wrong
    }

    fn unused(&self, calls: &[Call]) -> Vec<String> {
        let used = used(calls);
        let by = |role: &str| used.get(role).cloned().unwrap_or_default();
        let of_runs: BTreeSet<Right> = OF_RUNS.map(|verb| right(["", "secrets", verb])).into();
        let mut operator = by(CONTROLLER);
        operator.extend(of_runs.clone());
        operator.extend(RARE.map(right));
        let runs: BTreeSet<Right> = used
            .iter()
            .filter(|(role, _)| role.ends_with(RUNNER))
            .flat_map(|(_, rights)| rights.iter().cloned())
            .collect();
        [
            (CONTROLLER, &self.controller, operator),
            // The audit log names only the ClusterRole for a right that the ClusterRole and this Role grant.
            (LEASE, &self.lease, &by(LEASE) | &by(CONTROLLER)),
            ("the Role of runs", &of_runs, runs),
        ]
        .into_iter()
        .flat_map(|(role, granted, used)| {
            let unused: Vec<_> = granted.difference(&used).cloned().collect();
            unused
                .into_iter()
                .map(move |right| format!("granted and never used: {right} of {role}"))
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn audit_event_yields_right_and_granting_role() {
        let reason =
            r#"RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "r" to ServiceAccount "a/b""#;
        let event = json!({
            "user": {"username": "admin"}, "impersonatedUser": {"username": "operator"}, "verb": "patch",
            "requestURI": "/x", "responseStatus": {"code": 201}, "stageTimestamp": "now",
            "objectRef": {"resource": "pods", "subresource": "log", "namespace": "team", "name": "web"},
            "annotations": {"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": reason},
        });
        let refused = json!({
            "user": {"username": "operator"}, "verb": "get", "requestURI": "/y", "responseStatus": {"code": 403},
            "objectRef": {"resource": "leases", "apiGroup": "coordination.k8s.io", "namespace": "team"},
            "annotations": {"authorization.k8s.io/decision": "forbid", "authorization.k8s.io/reason": ""},
        });
        let version =
            json!({"user": {"username": "operator"}, "verb": "get", "requestURI": "/version"});
        let all: Vec<_> = calls([event, refused, version]).collect();
        let rights: Vec<_> = all.iter().map(|call| call.right.to_string()).collect();
        assert_eq!(
            rights,
            [
                "patch pods/log",
                "create pods/log",
                "get leases.coordination.k8s.io"
            ]
        );
        assert!(all.iter().all(|call| call.user == "operator"));
        let forbidden: Vec<_> = all.iter().map(|call| call.forbidden).collect();
        assert_eq!(forbidden, [false, false, true]);
        let used = used(&all);
        assert_eq!(used.keys().collect::<Vec<_>>(), ["r"]);
        assert_eq!(used["r"].len(), 2);
    }

    #[test]
    fn compare_reports_unused_and_missing_rights() {
        let rights = |all: &[[&str; 3]]| all.iter().copied().map(right).collect();
        let roles = Roles {
            controller: rights(&[["", "pods", "list"], ["", "secrets", "patch"], RARE[0]]),
            lease: rights(&[["coordination.k8s.io", "leases", "create"]]),
        };
        let call = |user: &str, role: &str, path: [&str; 3]| Call {
            user: user.to_owned(),
            right: right(path),
            namespace: String::new(),
            role: (!role.is_empty()).then(|| role.to_owned()),
            forbidden: role.is_empty(),
            what: String::new(),
        };
        let lease = call(OPERATOR, LEASE, ["coordination.k8s.io", "leases", "create"]);
        let pods = call(OPERATOR, CONTROLLER, ["", "pods", "list"]);
        let runner = "system:serviceaccount:team:web-runner";
        let mut calls = vec![lease, pods];
        calls.extend(OF_RUNS.map(|verb| call(runner, "web-runner", ["", "secrets", verb])));
        assert_eq!(roles.compare(&calls, true), [""; 0]);
        // Other calls with the ServiceAccount of a run, and calls on API resources outside of the operator's roles, are ignored.
        calls.push(call(runner, "", ["apps", "deployments", "get"]));
        calls.push(call(OPERATOR, "", ["", "services", "get"]));
        assert_eq!(roles.compare(&calls, true), [""; 0]);
        calls.push(call(OPERATOR, "", ["", "pods", "get"]));
        calls.push(call(runner, "", ["", "secrets", "get"]));
        assert_eq!(roles.compare(&calls, false).len(), 2);
        assert_eq!(
            roles.compare(&calls[1..3], true),
            [
                "granted and never used: create leases.coordination.k8s.io of alustan-controller-lease",
                "granted and never used: patch secrets of the Role of runs"
            ]
        );
    }
}
