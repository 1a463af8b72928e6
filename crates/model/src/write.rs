//! Writes of a controller to the API server. One [`Step`] is one write, except a clean-up, which is one write per kind of object.

use std::fmt;

use alustan_api::run::{History, Pin, RunInputs, RunProgress, RunRecord, key};
use alustan_api::{Terraform, TerraformStatus, labels, names};
use alustan_core::objects::secrets;
use alustan_core::step::{Keep, Object, Step};
use k8s_openapi::api::batch::v1 as batch;
use k8s_openapi::api::core::v1::Secret;
use kube_core::ResourceExt;
use serde::de::DeserializeOwned;

use crate::objects::{Job, Resource, StoredRecord};
use crate::resource::NAME;
use crate::shared::Shared;

/// One write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Write {
    AddFinalizer,
    CreateRecord(StoredRecord, Resource),
    SwapRecord(Swap),
    SwapReport(Shared<RunProgress>),
    ApplyPin(Shared<Pin>),
    CreateJob { name: String, job: Job },
    DeleteJob { name: String, uid: String },
    DeleteJobs,
    DeletePin,
    DeleteReport,
    DeleteRecord,
    RemoveFinalizer(Shared<Terraform>),
    ApplyStatus(Shared<TerraformStatus>),
}

/// Compare-and-swap of the run record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Swap {
    pub(crate) record: Shared<RunRecord>,
    pub(crate) history: Option<Shared<History>>,
    pub(crate) inputs: Inputs,
}

/// Change of the inputs in the run record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Inputs {
    Same,
    Set(Shared<RunInputs>),
    Drop,
}

impl Write {
    /// Returns the writes of `step`, in order. Omits objects that no rule of the model depends on.
    pub(crate) fn of(step: &Step, observed: &Resource) -> Vec<Self> {
        match step {
            Step::AddFinalizer => vec![Self::AddFinalizer],
            Step::CreateRecord(secret) => {
                let record = StoredRecord {
                    record: Shared::new(parse(secret, key::RECORD)),
                    history: Shared::new(parse(secret, key::HISTORY)),
                    inputs: None,
                };
                vec![Self::CreateRecord(record, observed.clone())]
            }
            Step::SwapRecord(swap) | Step::CheckRecord(swap) => vec![Self::SwapRecord(Swap {
                record: Shared::new(swap.record.clone()),
                history: swap.history.clone().map(Shared::new),
                inputs: match &swap.inputs {
                    Keep::Same => Inputs::Same,
                    Keep::Set(inputs) => Inputs::Set(Shared::new((**inputs).clone())),
                    Keep::Drop => Inputs::Drop,
                },
            })],
            Step::SwapReport(progress) => vec![Self::SwapReport(Shared::new((**progress).clone()))],
            Step::Ensure(object) => match &**object {
                Object::Secret(secret) if secret.name_any() == names::pin(NAME) => {
                    vec![Self::ApplyPin(Shared::new(parse(secret, secrets::PIN)))]
                }
                _ => Vec::new(),
            },
            Step::CreateJob(job) => vec![create_job(job)],
            Step::DeleteJob { name, uid, .. } => vec![Self::DeleteJob {
                name: name.clone(),
                uid: uid.clone(),
            }],
            // The API server lists the Secrets sorted by name.
            Step::CleanUp { .. } => vec![
                Self::DeleteJobs,
                Self::DeletePin,
                Self::DeleteReport,
                Self::DeleteRecord,
            ],
            Step::RemoveFinalizer => observed
                .tf
                .clone()
                .map(Self::RemoveFinalizer)
                .into_iter()
                .collect(),
            Step::TakeOver(_)
            | Step::PushContext
            | Step::PruneImages
            | Step::CreateBuildSecret(_)
            | Step::DeleteBuildSecret(_)
            | Step::DeleteOutputs(_)
            | Step::RecordRun(_)
            | Step::DeleteRun(_)
            | Step::DeleteClaim
            | Step::EmptyCache(_)
            | Step::ReleaseClaim(_) => Vec::new(),
        }
    }
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddFinalizer => f.write_str("add the finalizer"),
            Self::CreateRecord(..) => f.write_str("create the run record"),
            Self::SwapRecord(swap) => {
                let RunRecord {
                    number,
                    phase,
                    cancel,
                    ..
                } = &*swap.record;
                write!(
                    f,
                    "swap the run record: run {number}, phase {phase:?}, cancel {cancel}"
                )
            }
            Self::SwapReport(progress) => {
                let RunProgress {
                    number,
                    phase,
                    cancel,
                    closed,
                    ..
                } = &**progress;
                write!(
                    f,
                    "swap the run report: run {number}, phase {phase:?}, cancel {cancel}, closed {closed}"
                )
            }
            Self::ApplyPin(pin) => write!(f, "apply the pin of run {}", pin.number),
            Self::CreateJob { name, .. } => write!(f, "create Job {name}"),
            Self::DeleteJob { name, .. } => write!(f, "delete Job {name}"),
            Self::DeleteJobs => f.write_str("delete all Jobs"),
            Self::DeletePin => f.write_str("delete the pin"),
            Self::DeleteReport => f.write_str("delete the run report"),
            Self::DeleteRecord => f.write_str("delete the run record"),
            Self::RemoveFinalizer(_) => f.write_str("remove the finalizer"),
            Self::ApplyStatus(status) => write!(f, "apply the status: {:?}", status.state),
        }
    }
}

fn create_job(job: &batch::Job) -> Write {
    let template = job.spec.as_ref().map(|spec| &spec.template);
    let pod = template.and_then(|template| template.spec.as_ref());
    let containers = pod.map(|pod| pod.containers.as_slice());
    let mut environment = containers
        .unwrap_or_default()
        .iter()
        .flat_map(|container| container.env.iter().flatten());
    let decision = environment
        .find(|variable| variable.name == "ALUSTAN_DECISION")
        .and_then(|variable| variable.value.clone());
    let name = job.name_any();
    let number = name.rsplit_once('-').map(|(_, number)| number.parse());
    Write::CreateJob {
        job: Job {
            uid: String::new(),
            number: number
                .expect("the name has a number")
                .expect("the name ends with the number of the run"),
            inputs: job.annotations()[labels::INPUTS].clone(),
            decision: decision.expect("the pod has ALUSTAN_DECISION"),
        },
        name,
    }
}

fn parse<T: DeserializeOwned>(secret: &Secret, key: &str) -> T {
    let data = secret.data.as_ref().and_then(|data| data.get(key));
    serde_json::from_slice(&data.expect("the Secret has the key").0).expect("the value is valid")
}
