//! Selection of the base image, and thereby of the engine: from the resource or from the catalogue of the operator.

use alustan_api::report::Failure;
use alustan_api::run::{BUILD_PROTOCOL, PROTOCOL, PinnedImage};
use alustan_api::{Engine, EngineName, Reason, Terraform, engine};

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
    if let (None, Some((name, version))) = (own_image, requested_engine(tf)) {
        let requested = engine_text(name, version);
        if let Some(pinned) = pinned.filter(|image| image.asked.as_ref() == Some(&requested)) {
            return Ok(Ok(pinned.clone()));
        }
        return from_catalogue(name, version, &requested, settings).map(Err);
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
    tf.spec.container_registry.base_image.is_some() || requested_engine(tf).is_some()
}

/// Returns the engine and the version that `spec.engine` selects from the catalogue of the operator. `None` if `spec.engine` sets neither.
fn requested_engine(tf: &Terraform) -> Option<(EngineName, Option<&str>)> {
    let spec = tf.spec.engine.as_ref()?;
    Some((spec.requested()?, spec.version.as_deref()))
}

/// Formats engine and version: `opentofu 1.12`.
fn engine_text(name: EngineName, version: Option<&str>) -> String {
    version.map_or_else(|| name.to_string(), |version| format!("{name} {version}"))
}

fn from_catalogue(
    name: EngineName,
    version: Option<&str>,
    requested: &str,
    settings: &Settings,
) -> Result<UnresolvedBaseImage, Failure> {
    let matches = |entry: &&EngineImage| {
        entry.engine.name == name
            && version.map_or_else(
                || !entry.engine.version.contains('-'),
                |version| engine::is_wanted(version, &entry.engine.version),
            )
    };
    let newest = settings
        .engines
        .iter()
        .filter(matches)
        .max_by(|left, right| engine::order(&left.engine.version, &right.engine.version));
    newest
        .map(|entry| UnresolvedBaseImage {
            reference: entry.image.clone(),
            requested: Some(requested.to_owned()),
            engine: Some(entry.engine.clone()),
        })
        .ok_or_else(|| engine_unknown(requested, settings))
}

fn engine_unknown(requested: &str, settings: &Settings) -> Failure {
    let mut available: Vec<_> = settings.engines.iter().map(|image| &image.engine).collect();
    available.sort_by(|left, right| {
        let by_name = left.name.cmp(&right.name);
        by_name.then_with(|| engine::order(&right.version, &left.version))
    });
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
