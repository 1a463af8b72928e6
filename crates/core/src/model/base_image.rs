//! Selection of the base image, and thereby of the engine and its wrapper: from the resource or from the catalogue of the operator.

use std::cmp::Ordering;
use std::fmt;

use alustan_api::report::Failure;
use alustan_api::run::{BUILD_PROTOCOL, PROTOCOL, PinnedImage};
use alustan_api::{Engine, EngineName, Reason, Terraform, WrapperName, engine};

use crate::settings::{EngineImage, Settings};

/// A base image whose digest is not resolved yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnresolvedBaseImage {
    /// Image reference as configured.
    pub reference: String,
    /// Engine and version in `spec.engine`, if they selected the image. Example: `opentofu 1.12`.
    pub requested: Option<String>,
    /// Engine in the image. `None` if the image is not in the catalogue of the operator.
    pub engine: Option<Engine>,
}

impl UnresolvedBaseImage {
    /// Returns the base image with `resolved`, its reference by digest.
    pub fn pinned(self, resolved: String) -> PinnedImage {
        PinnedImage {
            reference: self.reference,
            resolved,
            asked: self.requested,
            engine: self.engine,
            protocol: PROTOCOL,
            build_protocol: Some(BUILD_PROTOCOL),
        }
    }

    /// Returns a message prefix with the setting that selects the image.
    pub fn selected_by(&self, tf: &Terraform) -> String {
        if let Some(requested) = &self.requested {
            format!("spec.engine: image of {requested} in the catalogue of the operator")
        } else if tf.spec.container_registry.base_image.is_some() {
            "spec.containerRegistry.baseImage".to_owned()
        } else {
            "operator flag --base-image".to_owned()
        }
    }
}

/// Returns the base image of `tf`. If the spec still selects the image `pinned`, returns `Ok` with `pinned`. If the spec selects another
/// image, returns `Err` with this image, whose digest must be resolved.
///
/// # Errors
/// The catalogue has no image for `spec.engine`.
pub fn base_image(
    tf: &Terraform,
    settings: &Settings,
    pinned: Option<&PinnedImage>,
) -> Result<Result<PinnedImage, UnresolvedBaseImage>, Failure> {
    let own_image = tf.spec.container_registry.base_image.as_ref();
    if let (None, Some(requested)) = (own_image, RequestedEngine::of(tf)) {
        let text = requested.to_string();
        if let Some(pinned) = pinned.filter(|image| image.asked.as_ref() == Some(&text)) {
            return Ok(Ok(pinned.clone()));
        }
        return from_catalogue(requested, settings).map(Err);
    }
    let reference = own_image.unwrap_or(&settings.base_image);
    if let Some(pinned) =
        pinned.filter(|image| image.asked.is_none() && image.reference == *reference)
    {
        return Ok(Ok(pinned.clone()));
    }
    let listed = settings
        .engines
        .iter()
        .find(|entry| entry.image == *reference);
    Ok(Err(UnresolvedBaseImage {
        reference: reference.clone(),
        requested: None,
        engine: listed.map(|entry| entry.engine.clone()),
    }))
}

/// Whether `tf` sets its base image or its engine.
pub(crate) fn is_selected(tf: &Terraform) -> bool {
    tf.spec.container_registry.base_image.is_some() || RequestedEngine::of(tf).is_some()
}

/// Engine, wrapper and their versions that `spec.engine` selects from the catalogue of the operator. Formatted as `opentofu 1.12` or
/// `opentofu 1.12 with terragrunt 1.0`.
#[derive(Clone, Copy)]
struct RequestedEngine<'a> {
    /// `None` for any engine with the wrapper.
    name: Option<EngineName>,
    version: Option<&'a str>,
    wrapper: Option<WrapperName>,
    wrapper_version: Option<&'a str>,
}

impl<'a> RequestedEngine<'a> {
    /// Returns `None` if `spec.engine` sets neither engine, version nor wrapper.
    fn of(tf: &'a Terraform) -> Option<Self> {
        let spec = tf.spec.engine.as_ref()?;
        let name = spec.requested();
        let is_requested = name.is_some() || spec.wrapper.is_some();
        is_requested.then_some(Self {
            name,
            version: spec.version.as_deref(),
            wrapper: spec.wrapper,
            wrapper_version: spec.wrapper_version.as_deref(),
        })
    }

    fn matches(&self, entry: &EngineImage) -> bool {
        let wrapper_matches = match (self.wrapper, &entry.wrapper) {
            (None, None) => true,
            (Some(name), Some(wrapper)) => {
                wrapper.name == name && is_version(self.wrapper_version, &wrapper.version)
            }
            (None, Some(_)) | (Some(_), None) => false,
        };
        let engine = &entry.engine;
        wrapper_matches
            && self.name.is_none_or(|name| name == engine.name)
            && is_version(self.version, &engine.version)
    }
}

impl fmt::Display for RequestedEngine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = |version: Option<&str>| {
            version
                .map(|version| format!(" {version}"))
                .unwrap_or_default()
        };
        match self.name {
            Some(name) => write!(f, "{name}{}", version(self.version))?,
            None => f.write_str("an engine")?,
        }
        match self.wrapper {
            Some(name) => write!(f, " with {name}{}", version(self.wrapper_version)),
            None => Ok(()),
        }
    }
}

/// Whether `version` is the version `wanted`, or, without `wanted`, a release.
fn is_version(wanted: Option<&str>, version: &str) -> bool {
    wanted.map_or_else(
        || !version.contains('-'),
        |wanted| engine::is_wanted(wanted, version),
    )
}

/// Compares two entries of the catalogue: the default engine is greater than the others, then the newer version of the engine, then the newer
/// version of the wrapper.
fn order(left: &EngineImage, right: &EngineImage) -> Ordering {
    let by_name = right.engine.name.cmp(&left.engine.name);
    let by_engine =
        by_name.then_with(|| engine::order(&left.engine.version, &right.engine.version));
    by_engine.then_with(|| match (&left.wrapper, &right.wrapper) {
        (Some(left), Some(right)) => engine::order(&left.version, &right.version),
        (left, right) => left.is_some().cmp(&right.is_some()),
    })
}

fn from_catalogue(
    requested: RequestedEngine<'_>,
    settings: &Settings,
) -> Result<UnresolvedBaseImage, Failure> {
    let entries = settings.engines.iter();
    let newest = entries
        .filter(|entry| requested.matches(entry))
        .max_by(|left, right| order(left, right));
    newest
        .map(|entry| UnresolvedBaseImage {
            reference: entry.image.clone(),
            requested: Some(requested.to_string()),
            engine: Some(entry.engine.clone()),
        })
        .ok_or_else(|| engine_unknown(requested, settings))
}

fn engine_unknown(requested: RequestedEngine<'_>, settings: &Settings) -> Failure {
    let mut available: Vec<_> = settings.engines.iter().collect();
    available.sort_by(|left, right| order(right, left));
    let available: Vec<String> = available.into_iter().map(ToString::to_string).collect();
    let available = if available.is_empty() {
        "the catalogue is empty; add images with the operator flag --engine".to_owned()
    } else {
        format!("available: {}", available.join(", "))
    };
    Failure::user(
        Reason::EngineUnknown,
        format!(
            "spec.engine: the catalogue of the operator does not have {requested}; {available}; for \
             another image, set spec.containerRegistry.baseImage"
        ),
    )
}

/// Whether `base` may lack a runner of the current protocol version. If so, the build adds the runner (rule 4).
pub(crate) fn may_lack_runner(base: &PinnedImage, settings: &Settings) -> bool {
    let is_foreign =
        base.asked.is_none() && base.reference != settings.base_image && base.engine.is_none();
    is_foreign || base.protocol != PROTOCOL
}

/// Whether `base` may lack a runner with the build steps of this operator version. If so, the build pod uses the runner of the operator
/// image.
pub(crate) fn may_lack_build_steps(base: &PinnedImage, settings: &Settings) -> bool {
    may_lack_runner(base, settings) || base.build_protocol != Some(BUILD_PROTOCOL)
}
