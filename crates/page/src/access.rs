//! Permissions of a user: each decision is that of a `SubjectAccessReview` and is reused for [`MAX_AGE`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;

use crate::actions::{Action, Permissions};
use crate::error::PageError;
use crate::kube_call::call;

/// Time for which a decision is reused.
const MAX_AGE: Duration = Duration::from_secs(10);

/// Maximum number of stored decisions of one user. Above it, expired decisions are removed, or else all.
const MAX_DECISIONS: usize = 4096;

/// Number of concurrent reviews of one request.
const CONCURRENT_REVIEWS: usize = 16;

/// API group of the kinds of this project.
const GROUP: &str = "alustan.io";

/// Attributes of an access review.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AccessReview {
    /// RBAC verb.
    pub(crate) verb: &'static str,
    /// API group. Empty for the core group.
    pub(crate) group: &'static str,
    /// Resource, for example `terraforms`.
    pub(crate) resource: &'static str,
    /// Subresource, for example `log`.
    pub(crate) subresource: Option<&'static str>,
    /// Namespace. `None`: all namespaces.
    pub(crate) namespace: Option<String>,
    /// Name of the object. `None`: all objects.
    pub(crate) name: Option<String>,
}

impl AccessReview {
    /// Access to `terraforms`.
    pub(crate) fn terraforms(
        verb: &'static str,
        namespace: Option<&str>,
        name: Option<&str>,
    ) -> Self {
        Self {
            verb,
            group: GROUP,
            resource: "terraforms",
            subresource: None,
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
        }
    }

    /// Access to the records of runs in `namespace`.
    pub(crate) fn runs(verb: &'static str, namespace: &str) -> Self {
        Self {
            resource: "terraformruns",
            ..Self::terraforms(verb, Some(namespace), None)
        }
    }

    /// Access to the logs of pods in `namespace`.
    pub(crate) fn pod_logs(namespace: &str) -> Self {
        Self {
            group: "",
            resource: "pods",
            subresource: Some("log"),
            ..Self::terraforms("get", Some(namespace), None)
        }
    }

    /// Access to Secret `name` in `namespace`.
    pub(crate) fn secret(namespace: &str, name: &str) -> Self {
        Self {
            group: "",
            resource: "secrets",
            ..Self::terraforms("get", Some(namespace), Some(name))
        }
    }

    fn attributes(&self) -> ResourceAttributes {
        ResourceAttributes {
            verb: Some(self.verb.to_owned()),
            group: Some(self.group.to_owned()),
            resource: Some(self.resource.to_owned()),
            subresource: self.subresource.map(str::to_owned),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            ..ResourceAttributes::default()
        }
    }
}

/// Access of a user to the API server.
#[derive(Clone)]
pub enum Access {
    /// Requests are authenticated as the user: with the user's own credentials, or by impersonation. The API server enforces all permissions.
    Own(Client),
    /// Requests are authenticated as the page. The page reads an object only after a `SubjectAccessReview` of the user, and writes nothing.
    Reviewed {
        /// Client with the ServiceAccount of the page.
        client: Client,
        /// Groups of the user.
        groups: Vec<String>,
        /// Reason why the user cannot write, for the titles of disabled buttons.
        read_only: String,
    },
}

/// An authenticated user.
pub struct Viewer {
    /// User name, as the API server knows it.
    user: String,
    access: Access,
    decisions: Mutex<BTreeMap<AccessReview, (Instant, bool)>>,
}

impl Viewer {
    /// Creates a viewer for the user with the name `user`.
    pub fn new(user: String, access: Access) -> Self {
        Self {
            user,
            access,
            decisions: Mutex::default(),
        }
    }

    /// Returns the name of the user.
    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    /// Returns the client for reads. With [`Access::Reviewed`], a read requires [`require`](Self::require) before.
    pub(crate) fn reader(&self) -> &Client {
        match &self.access {
            Access::Own(client) | Access::Reviewed { client, .. } => client,
        }
    }

    /// Returns the client for writes.
    ///
    /// # Errors
    /// The reason why the user cannot write.
    pub(crate) fn writer(&self) -> Result<&Client, &str> {
        match &self.access {
            Access::Own(client) => Ok(client),
            Access::Reviewed { read_only, .. } => Err(read_only),
        }
    }

    /// Whether requests are authenticated as the user, so that the API server checks them.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.access, Access::Own(_))
    }

    /// Whether the user may do what `wanted` describes.
    ///
    /// # Errors
    /// If the API server does not answer, or the credentials of the user expired.
    pub(crate) async fn may(&self, wanted: &AccessReview) -> Result<bool, PageError> {
        let known = self.decisions.lock().get(wanted).copied();
        if let Some((_, answer)) = known.filter(|(at, _)| at.elapsed() < MAX_AGE) {
            return Ok(answer);
        }
        let answer = self.review(wanted).await?;
        let mut decisions = self.decisions.lock();
        if decisions.len() >= MAX_DECISIONS {
            decisions.retain(|_, (at, _)| at.elapsed() < MAX_AGE);
        }
        if decisions.len() >= MAX_DECISIONS {
            decisions.clear();
        }
        decisions.insert(wanted.clone(), (Instant::now(), answer));
        Ok(answer)
    }

    /// Fails unless the user may do what `wanted` describes.
    ///
    /// # Errors
    /// [`PageError::Forbidden`].
    pub(crate) async fn require(&self, wanted: &AccessReview) -> Result<(), PageError> {
        if self.may(wanted).await? {
            return Ok(());
        }
        Err(forbidden(&self.user, wanted))
    }

    /// Returns those of `namespaces` in which the user may list `terraforms`.
    pub(crate) async fn listable(
        &self,
        namespaces: BTreeSet<String>,
    ) -> Result<BTreeSet<String>, PageError> {
        if self
            .may(&AccessReview::terraforms("list", None, None))
            .await?
        {
            return Ok(namespaces);
        }
        let allowed: Vec<Option<String>> = stream::iter(namespaces)
            .map(|namespace| async move {
                let wanted = AccessReview::terraforms("list", Some(&namespace), None);
                let may = self.may(&wanted).await?;
                Ok::<_, PageError>(may.then_some(namespace))
            })
            .buffered(CONCURRENT_REVIEWS)
            .try_collect()
            .await?;
        Ok(allowed.into_iter().flatten().collect())
    }

    /// Returns the permissions of the user on the resource `name` in `namespace`.
    pub(crate) async fn permissions(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Permissions, PageError> {
        let mut permissions = BTreeMap::new();
        for action in Action::ALL {
            let missing = self.missing(action, namespace, name).await?;
            permissions.insert(action, missing);
        }
        Ok(Permissions(permissions))
    }

    /// Returns why the user may not execute `action`.
    async fn missing(
        &self,
        action: Action,
        namespace: &str,
        name: &str,
    ) -> Result<Option<String>, PageError> {
        if let Err(read_only) = self.writer() {
            return Ok(Some(read_only.to_owned()));
        }
        let wanted = |verb| AccessReview::terraforms(verb, Some(namespace), Some(name));
        if !self.may(&wanted("patch")).await? {
            return Ok(Some(format!(
                "requires the verb patch on terraforms in namespace {namespace}"
            )));
        }
        let verb = action.verb();
        if self.may(&wanted(verb)).await? {
            return Ok(None);
        }
        if action.is_included_in_update() && self.may(&wanted("update")).await? {
            return Ok(None);
        }
        Ok(Some(format!(
            "requires the verb {verb} on terraforms in namespace {namespace}"
        )))
    }

    async fn review(&self, wanted: &AccessReview) -> Result<bool, PageError> {
        let parameters = PostParams::default();
        let attributes = Some(wanted.attributes());
        let allowed = match &self.access {
            Access::Own(client) => {
                let review = SelfSubjectAccessReview {
                    spec: SelfSubjectAccessReviewSpec {
                        resource_attributes: attributes,
                        ..SelfSubjectAccessReviewSpec::default()
                    },
                    ..SelfSubjectAccessReview::default()
                };
                let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
                let answer = call("review permissions", api.create(&parameters, &review)).await?;
                answer.status.map(|status| status.allowed)
            }
            Access::Reviewed { client, groups, .. } => {
                let review = SubjectAccessReview {
                    spec: SubjectAccessReviewSpec {
                        resource_attributes: attributes,
                        user: Some(self.user.clone()),
                        groups: Some(groups.clone()),
                        ..SubjectAccessReviewSpec::default()
                    },
                    ..SubjectAccessReview::default()
                };
                let api: Api<SubjectAccessReview> = Api::all(client.clone());
                let answer = call("review permissions", api.create(&parameters, &review)).await?;
                answer.status.map(|status| status.allowed)
            }
        };
        Ok(allowed.unwrap_or_default())
    }
}

/// Returns the error of a user without the permission `wanted`, in the words of the API server.
fn forbidden(user: &str, wanted: &AccessReview) -> PageError {
    let AccessReview {
        verb,
        group,
        resource,
        subresource,
        namespace,
        ..
    } = wanted;
    let resource = match subresource {
        Some(subresource) => format!("{resource}/{subresource}"),
        None => (*resource).to_owned(),
    };
    let scope = match namespace {
        Some(namespace) => format!("in the namespace \"{namespace}\""),
        None => "at the cluster scope".to_owned(),
    };
    PageError::Forbidden(format!(
        "User \"{user}\" cannot {verb} resource \"{resource}\" in API group \"{group}\" {scope}"
    ))
}
