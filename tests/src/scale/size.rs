//! Numbers of objects of the harness, and names.

use serde_json::{Value, json};

use super::{LABEL, OWNER};
use crate::fake_kubelet;

/// Number of variables of a resource.
pub(super) const VARIABLES: usize = 20;
/// Largest number of modules in the monorepo.
const MAX_MODULES: usize = 1_000;
/// Largest number of modules that a commit concerns.
const MAX_CONCERNED: usize = 100;

/// Numbers of objects, derived from the number of resources.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Number of resources.
    pub resources: usize,
    /// Number of namespaces.
    pub namespaces: usize,
    /// Number of repositories with one module each.
    pub repositories: usize,
    /// Number of modules in the monorepo: each belongs to one resource.
    pub modules: usize,
    /// Number of resources that run on the real node.
    pub real: usize,
}

/// A resource of the harness.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) size: Size,
    pub(super) index: usize,
}

impl Size {
    /// Returns the size for `resources` resources.
    pub fn of(resources: usize) -> Self {
        Self {
            resources,
            namespaces: (resources / 100).clamp(4, 100),
            repositories: (resources / 50).clamp(2, 200),
            modules: (resources / 10).clamp(1, MAX_MODULES),
            real: (resources / 20).clamp(2, 50),
        }
    }

    /// Returns the number of modules that a commit to the shared module of the monorepo concerns.
    pub fn concerned(self) -> usize {
        self.modules.min(MAX_CONCERNED)
    }

    pub(super) fn members(self) -> impl Iterator<Item = Member> {
        (0..self.resources).map(move |index| Member { size: self, index })
    }

    /// Returns the first `count` resources with an own module text per repository, on the fake node.
    pub(super) fn bulk(self, count: usize) -> Vec<Member> {
        let first = self.real + self.modules;
        self.members().skip(first).take(count).collect()
    }
}

impl Member {
    /// Whether the resource runs on the real node.
    pub(super) fn is_real(self) -> bool {
        self.index < self.size.real
    }

    /// Returns the number of the module in the monorepo.
    pub(super) fn module(self) -> Option<usize> {
        let module = self.index.checked_sub(self.size.real)?;
        (module < self.size.modules).then_some(module)
    }

    pub(super) fn name(self) -> String {
        format!("stack-{:05}", self.index)
    }

    /// Returns the namespace. All resources on the real node share one, and so one build.
    pub(super) fn namespace(self) -> String {
        let number = if self.is_real() {
            0
        } else {
            self.index % self.size.namespaces
        };
        namespace(number)
    }

    fn repository(self) -> String {
        if self.is_real() {
            "real".to_owned()
        } else if self.module().is_some() {
            "mono".to_owned()
        } else {
            repository(self.index % self.size.repositories)
        }
    }

    /// Returns the resource.
    pub(super) fn resource(self) -> Value {
        let (namespace, repository) = (self.namespace(), self.repository());
        let image = format!("registry.alustan.test:5000/{namespace}/{repository}");
        let mut spec = json!({
            "gitRepo": {"url": format!("https://git.alustan.test/{OWNER}/{repository}"), "branch": "main"},
            "containerRegistry": {"imageName": image},
            "variables": variables(&self.name(), 0),
            "driftDetection": {"interval": "24h"},
            "retry": {"minBackoff": "1s", "maxBackoff": "5s"},
        });
        if let Some(module) = self.module() {
            spec["gitRepo"]["path"] = json!(module_path(module));
        }
        if !self.is_real() {
            let pod = json!({"nodeSelector": fake_kubelet::node_selector(), "tolerations": [fake_kubelet::toleration()]});
            spec["runner"] = json!({"pod": pod});
            spec["containerRegistry"]["builder"] = json!({"kind": "Append", "pod": pod});
        }
        json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
            "metadata": {"name": self.name(), "namespace": namespace, "labels": {LABEL: "true"}},
            "spec": spec,
        })
    }
}

/// Returns the values of all variables of the resource `name`.
pub fn variables(name: &str, generation: usize) -> Value {
    (0..VARIABLES)
        .map(|number| {
            let value = match number {
                0 => format!("generation {generation}"),
                _ => format!("{name}.region-{number}.example.com"),
            };
            (format!("setting_{number:02}"), json!(value))
        })
        .collect::<serde_json::Map<_, _>>()
        .into()
}

pub(super) fn namespace(number: usize) -> String {
    format!("{OWNER}-{number:03}")
}

pub(super) fn repository(number: usize) -> String {
    format!("app-{number:03}")
}

pub(super) fn module_path(module: usize) -> String {
    format!("modules/m-{module:04}")
}
