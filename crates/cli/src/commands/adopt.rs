//! `adopt`: creates a `Terraform` resource for a state that another operator or a local engine manages.
//!
//! Without `--apply`, the command changes nothing: it prints the resource on standard output, and the report on standard error.

mod adoption;
mod backend_block;
mod burrito;
mod environment;
mod fields;
mod git_source;
mod hcp;
mod object;
mod plain;
mod pod;
mod report;
mod state;
mod tofu_controller;
mod values;

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use alustan_api::Terraform;
use clap::{Args, ValueEnum};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use self::adoption::{Adoption, Options, Stop};
use self::object::text;
use self::report::Manifest;
use self::state::Summary;
use self::values::{is_image_name, is_namespace, is_object_name, is_resource_name};
use crate::cluster::{Cluster, FIELD_MANAGER, call};
use crate::error::Error;
use crate::print;

/// Maximum size of a state file, in bytes.
const MAX_STATE_BYTES: u64 = 256 << 20;

/// Create a Terraform resource for a state that another operator or a local engine manages.
///
/// Prints the resource and changes nothing. With --apply, creates the resource, suspended, and suspends the object of the other operator. The first
/// plan waits for approval if it has changes.
#[derive(Debug, Args)]
pub(crate) struct Adopt {
    /// Name of the object of the other operator. With `--from state`, the state file.
    #[arg(value_name = "NAME|FILE")]
    object: String,
    /// Origin of the state.
    #[arg(long, value_enum)]
    from: Origin,
    /// Name of the Terraform resource. Default: NAME.
    #[arg(long, required_if_eq("from", "state"))]
    name: Option<String>,
    /// Image repository for the runner image (spec.containerRegistry.imageName).
    #[arg(long, value_name = "IMAGE")]
    image_name: String,
    /// Secret of type kubernetes.io/dockerconfigjson with the credentials of the registry.
    #[arg(long, value_name = "SECRET")]
    registry_secret: Option<String>,
    /// URL of the git repository. Default: the URL in the object of the other operator.
    #[arg(long, required_if_eq_any([("from", "state"), ("from", "hcp")]))]
    url: Option<String>,
    /// Branch. Default: the revision in the object of the other operator.
    #[arg(long)]
    branch: Option<String>,
    /// Folder of the module in the repository. Default: the folder in the object of the other operator.
    #[arg(long)]
    path: Option<String>,
    /// Create the resource, and suspend the object of the other operator.
    #[arg(long)]
    apply: bool,
}

/// Origin of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Origin {
    /// Terraform of tofu-controller (infra.contrib.fluxcd.io).
    TofuController,
    /// Layer of burrito (config.terraform.padok.cloud).
    Burrito,
    /// Workspace of the HCP Terraform operator (app.terraform.io). The user pulls the state.
    Hcp,
    /// State file of a local engine.
    State,
}

impl Origin {
    /// Returns group, version and kind of the object, and the plural name of the kind. `None` for a file.
    fn kind(self) -> Option<(GroupVersionKind, &'static str)> {
        match self {
            Self::TofuController => Some((
                GroupVersionKind::gvk("infra.contrib.fluxcd.io", "v1alpha2", "Terraform"),
                tofu_controller::CRD,
            )),
            Self::Burrito => Some((
                GroupVersionKind::gvk("config.terraform.padok.cloud", "v1alpha1", "TerraformLayer"),
                burrito::CRD,
            )),
            Self::Hcp => Some((
                GroupVersionKind::gvk("app.terraform.io", "v1alpha2", "Workspace"),
                hcp::CRD,
            )),
            Self::State => None,
        }
    }
}

impl Adopt {
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let options = self.options(&cluster.namespace).map_err(Error::Refused)?;
        let theirs = match self.from.kind() {
            Some((kind, crd)) => Some(OtherObject::read(cluster, &kind, crd, &self.object).await?),
            None => None,
        };
        let object = theirs
            .as_ref()
            .map_or(&Value::Null, |theirs| &theirs.object);
        let adoption = self.map(cluster, object, &options).await?;
        check_free(cluster, &options.name).await?;
        let manifest = Manifest::new(&adoption, theirs.as_ref().map(OtherObject::reference));
        print::note(&manifest.report());
        if self.apply {
            apply(cluster, &adoption, theirs.as_ref()).await?;
        } else {
            print::line(manifest.yaml()?.trim_end())?;
        }
        print::note(&manifest.steps(self.apply));
        Ok(())
    }

    /// Validates the options.
    fn options(&self, namespace: &str) -> Result<Options, String> {
        let name = self.name.clone().unwrap_or_else(|| self.object.clone());
        if self.from != Origin::State && !is_object_name(&self.object) {
            return Err("NAME: must be the name of an object".to_owned());
        }
        if !is_resource_name(&name) {
            return Err(format!(
                "the name of the resource must be the name of an object with at most 50 \
                 characters: set --name instead of {}",
                print::visible(&name)
            ));
        }
        if !is_namespace(namespace) {
            return Err("--namespace: must be the name of a namespace".to_owned());
        }
        if !is_image_name(&self.image_name) {
            return Err("--image-name: must be an image repository without a tag".to_owned());
        }
        if self
            .registry_secret
            .as_deref()
            .is_some_and(|name| !is_object_name(name))
        {
            return Err("--registry-secret: must be the name of a Secret".to_owned());
        }
        Ok(Options {
            name,
            namespace: namespace.to_owned(),
            image_name: self.image_name.clone(),
            registry_secret: self.registry_secret.clone(),
            url: self.url.clone(),
            branch: self.branch.clone(),
            path: self.path.clone(),
        })
    }

    /// Maps `object`, or the state file. Reads the objects to which `object` refers.
    async fn map(
        &self,
        cluster: &Cluster,
        object: &Value,
        options: &Options,
    ) -> Result<Adoption, Error> {
        match self.from {
            Origin::TofuController => map_tofu_controller(cluster, object, options).await,
            Origin::Burrito => map_burrito(cluster, object, options).await,
            Origin::Hcp => hcp::map(object, options).map_err(refused),
            Origin::State => {
                let bytes = self.read_file()?;
                let state = Summary::read(&bytes)
                    .map_err(|why| refused(format!("the file is not a state: {why}")))?;
                plain::map(&self.object, &state, options).map_err(refused)
            }
        }
    }

    fn read_file(&self) -> Result<Vec<u8>, Error> {
        let path = Path::new(&self.object);
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(MAX_STATE_BYTES).read_to_end(&mut bytes))
            .map_err(|source| Error::File {
                path: path.to_owned(),
                source,
            })?;
        Ok(bytes)
    }
}

fn refused(mut why: String) -> Error {
    why.insert_str(0, "cannot adopt: ");
    Error::Refused(why)
}

/// Maps a layer of burrito, with its repository.
async fn map_burrito(
    cluster: &Cluster,
    layer: &Value,
    options: &Options,
) -> Result<Adoption, Error> {
    let kind = GroupVersionKind::gvk(
        "config.terraform.padok.cloud",
        "v1alpha1",
        "TerraformRepository",
    );
    let repository = match Reference::of(layer, "/spec/repository", options) {
        Some(reference) if options.url.is_none() => Some(reference.read(cluster, &kind).await?),
        _ => None,
    };
    burrito::map(layer, repository.as_ref(), options).map_err(refused)
}

/// Maps an object of tofu-controller, with its source and its state.
async fn map_tofu_controller(
    cluster: &Cluster,
    object: &Value,
    options: &Options,
) -> Result<Adoption, Error> {
    let place = tofu_controller::place(object).map_err(refused)?;
    let state = match place.secret() {
        Some(secret) => Some(read_state(cluster, &secret).await?),
        None => None,
    };
    let is_git = text(object, "/spec/sourceRef/kind") == Some("GitRepository");
    let source = match Reference::of(object, "/spec/sourceRef", options) {
        Some(reference) if is_git && options.url.is_none() => {
            let version = text(object, "/spec/sourceRef/apiVersion")
                .and_then(|version| version.strip_prefix("source.toolkit.fluxcd.io/"))
                .filter(|version| is_object_name(version))
                .unwrap_or("v1");
            let kind = GroupVersionKind::gvk("source.toolkit.fluxcd.io", version, "GitRepository");
            Some(reference.read(cluster, &kind).await?)
        }
        _ => None,
    };
    tofu_controller::map(object, source.as_ref(), state.as_ref(), options).map_err(refused)
}

/// Reads the state in the Secret `name` of the `kubernetes` backend.
async fn read_state(cluster: &Cluster, name: &str) -> Result<Summary, Error> {
    let key = cluster.key(name);
    let action = format!("read Secret {key} with the state");
    let secret = call(&action, cluster.api::<Secret>().get_opt(name))
        .await?
        .ok_or_else(|| {
            refused(format!(
                "Secret {key} with the state does not exist: there is nothing to adopt"
            ))
        })?;
    let data = secret.data.unwrap_or_default();
    let state = data
        .get("tfstate")
        .ok_or_else(|| refused(format!("Secret {key} has no key tfstate")))?;
    Summary::unpack(&state.0)
        .map_err(|why| refused(format!("Secret {key} contains no state: {why}")))
}

/// Reference to an object of another operator.
struct Reference {
    namespace: String,
    name: String,
}

impl Reference {
    /// Returns the reference at `pointer`. `None` if its name or namespace is not valid.
    fn of(object: &Value, pointer: &str, options: &Options) -> Option<Self> {
        let field = |name: &str| text(object, &format!("{pointer}/{name}"));
        let namespace = field("namespace").unwrap_or(&options.namespace);
        Some(Self {
            namespace: Some(namespace)
                .filter(|name| is_namespace(name))?
                .to_owned(),
            name: field("name")
                .filter(|name| is_object_name(name))?
                .to_owned(),
        })
    }

    async fn read(&self, cluster: &Cluster, kind: &GroupVersionKind) -> Result<Value, Error> {
        let resource = ApiResource::from_gvk(kind);
        let api: Api<DynamicObject> =
            Api::namespaced_with(cluster.client.clone(), &self.namespace, &resource);
        let action = format!("read {} {}/{}", kind.kind, self.namespace, self.name);
        let object = call(&action, api.get(&self.name)).await?;
        Ok(to_value(object))
    }
}

/// Object of another operator, and the API of its kind.
struct OtherObject {
    api: Api<DynamicObject>,
    name: String,
    crd: &'static str,
    object: Value,
}

impl OtherObject {
    async fn read(
        cluster: &Cluster,
        kind: &GroupVersionKind,
        crd: &'static str,
        name: &str,
    ) -> Result<Self, Error> {
        let plural = crd.split('.').next().unwrap_or_default();
        let resource = ApiResource::from_gvk_with_plural(kind, plural);
        let api: Api<DynamicObject> =
            Api::namespaced_with(cluster.client.clone(), &cluster.namespace, &resource);
        let action = format!("read {crd} {}", cluster.key(name));
        let object = call(&action, api.get(name)).await?;
        Ok(Self {
            api,
            name: name.to_owned(),
            crd,
            object: to_value(object),
        })
    }

    /// Returns the patch of `stop`, which the API server refuses if the object is not the one that was mapped: otherwise the new resource
    /// would have another configuration than the object that it replaces.
    fn patch_if_unchanged(&self, stop: &Stop) -> Value {
        let mut patch = stop.patch.clone();
        let version = self.object.pointer("/metadata/resourceVersion");
        let metadata = patch
            .as_object_mut()
            .map(|patch| patch.entry("metadata").or_insert_with(|| json!({})));
        if let Some(Value::Object(metadata)) = metadata {
            let version = version.cloned().unwrap_or_default();
            metadata.insert("resourceVersion".to_owned(), version);
        }
        patch
    }

    fn reference(&self) -> report::Other<'_> {
        report::Other {
            crd: self.crd,
            name: &self.name,
            object: &self.object,
        }
    }
}

fn to_value(object: DynamicObject) -> Value {
    // Serialization of an object that was deserialized from JSON does not fail.
    serde_json::to_value(object).unwrap_or_default()
}

/// Fails if the resource exists: its configuration and its state must not change.
async fn check_free(cluster: &Cluster, name: &str) -> Result<(), Error> {
    let key = cluster.key(name);
    let action = format!("read Terraform {key}");
    match call(&action, cluster.api::<Terraform>().get_metadata_opt(name)).await? {
        None => Ok(()),
        Some(_) => Err(Error::Refused(format!(
            "{} {key} exists: set --name to another name, or delete it with deletionPolicy: Orphan",
            values::resource_type()
        ))),
    }
}

/// Validates the resource by a dry run, stops the other operator, and creates the resource, in this order: at no time do both operators apply.
async fn apply(
    cluster: &Cluster,
    adoption: &Adoption,
    theirs: Option<&OtherObject>,
) -> Result<(), Error> {
    let (namespace, name) = adoption.key();
    let kind = values::resource_type();
    let tf: Terraform = serde_json::from_value(adoption.manifest())
        .map_err(|error| Error::Refused(format!("the resource is not valid: {error}")))?;
    let mut parameters = PostParams {
        dry_run: true,
        field_manager: Some(FIELD_MANAGER.to_owned()),
    };
    let api = cluster.api::<Terraform>();
    let action = format!("create {kind} {namespace}/{name} (dry run)");
    call(&action, api.create(&parameters, &tf)).await?;
    if let (Some(theirs), Some(stop)) = (theirs, &adoption.stop) {
        let patch = Patch::Merge(theirs.patch_if_unchanged(stop));
        let action = format!(
            "patch {} {namespace}/{} (on a conflict, it changed since it was read: run the command again)",
            theirs.crd, theirs.name
        );
        let parameters = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        call(&action, theirs.api.patch(&theirs.name, &parameters, &patch)).await?;
        print::line(&format!("{}/{} {}", theirs.crd, theirs.name, stop.effect))?;
    }
    parameters.dry_run = false;
    let action = format!("create {kind} {namespace}/{name}");
    call(&action, api.create(&parameters, &tf)).await?;
    print::line(&format!("{kind}/{name} created (suspended)"))
}

#[cfg(test)]
mod tests;
