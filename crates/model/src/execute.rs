//! Execution of the writes of controllers.

use alustan_api::run::RunProgress;
use alustan_api::{FINALIZER, KEPT, Terraform};
use kube_core::ResourceExt;

use crate::objects::{Job, StoredRecord, StoredReport};
use crate::pod::Pod;
use crate::rules::Rule;
use crate::scenario::Defect;
use crate::shared::Shared;
use crate::state::{Reconcile, State};
use crate::write::{Inputs, Write};

/// A write failed, and the controller ends its reconcile.
struct Refused;

impl State {
    /// Executes the next write of `controller`. A refused write ends the reconcile.
    pub(crate) fn execute(&mut self, controller: usize, defect: Option<Defect>) {
        let Some(mut reconcile) = self.reconciles[controller].take() else {
            return;
        };
        let Some(write) = reconcile.writes.pop() else {
            return;
        };
        let result = self.write(&write, &mut reconcile, defect);
        if result.is_ok() && !reconcile.writes.is_empty() {
            self.reconciles[controller] = Some(reconcile);
        }
    }

    fn write(
        &mut self,
        write: &Write,
        reconcile: &mut Reconcile,
        defect: Option<Defect>,
    ) -> Result<(), Refused> {
        let is_versioned = defect != Some(Defect::WritesWithoutVersion);
        match write {
            Write::AddFinalizer => self.add_finalizer(),
            Write::CreateRecord(record, observed) => {
                // The resource has the finalizer, so the operator checks that it is not outdated.
                if *observed != self.objects.resource {
                    return Err(Refused);
                }
                let stored = &mut self.objects.secrets.record;
                // An existing record is kept, and the reconcile continues with it.
                if stored.content.is_none() {
                    stored.set(Some(record.clone()));
                }
                reconcile.record_version = stored.version;
                Ok(())
            }
            Write::SwapRecord(swap) => {
                let stored = &mut self.objects.secrets.record;
                let is_observed = stored.version == reconcile.record_version || !is_versioned;
                let Some(before) = stored.content.clone().filter(|_| is_observed) else {
                    return Err(Refused);
                };
                stored.set(Some(StoredRecord {
                    record: swap.record.clone(),
                    history: swap.history.clone().unwrap_or(before.history),
                    inputs: match &swap.inputs {
                        Inputs::Same => before.inputs,
                        Inputs::Set(inputs) => Some(inputs.clone()),
                        Inputs::Drop => None,
                    },
                }));
                reconcile.record_version = stored.version;
                Ok(())
            }
            Write::SwapReport(progress) => {
                let stored = &self.objects.secrets.report;
                if is_versioned && stored.version != reconcile.report_version {
                    return Err(Refused);
                }
                self.check_lock_of_report(progress);
                let stored = &mut self.objects.secrets.report;
                stored.set(Some(StoredReport {
                    progress: progress.clone(),
                    report: None,
                    has_outputs: false,
                }));
                reconcile.report_version = stored.version;
                Ok(())
            }
            Write::ApplyPin(_) if defect == Some(Defect::SkipsPin) => Ok(()),
            Write::ApplyPin(pin) => {
                let stored = &mut self.objects.secrets.pin;
                if is_versioned && stored.version != reconcile.pin_version {
                    return Err(Refused);
                }
                stored.set(Some(pin.clone()));
                reconcile.pin_version = stored.version;
                Ok(())
            }
            Write::CreateJob { name, job } => self.create_job(name, job),
            Write::DeleteJob { name, uid } => {
                let jobs = &self.objects.workload.jobs;
                if jobs.get(name).is_some_and(|job| job.uid == *uid) {
                    self.delete_job(name);
                }
                Ok(())
            }
            Write::DeleteJobs => {
                let names: Vec<String> = self.objects.workload.jobs.keys().cloned().collect();
                for name in names {
                    self.delete_job(&name);
                }
                Ok(())
            }
            Write::DeletePin => {
                self.objects.secrets.pin.set(None);
                Ok(())
            }
            Write::DeleteReport => {
                self.check_lock_of_report(&RunProgress::default());
                self.objects.secrets.report.set(None);
                Ok(())
            }
            Write::DeleteRecord => {
                self.objects.secrets.record.set(None);
                Ok(())
            }
            Write::RemoveFinalizer(observed) => self.remove_finalizer(observed),
            Write::ApplyStatus(status) => {
                self.objects.resource.status = status.clone();
                Ok(())
            }
        }
    }

    /// Checks that no write of a controller releases the lock in the report while the pod that holds it may run.
    fn check_lock_of_report(&mut self, next: &RunProgress) {
        let report = self.objects.secrets.report.content.as_ref();
        let Some(held) = report.and_then(|report| report.progress.lock.clone()) else {
            return;
        };
        let is_released = next.lock.as_ref() != Some(&held);
        let may_live = self.pods.iter().any(|pod| pod.may_hold(&held));
        self.check(Rule::LockOfLivePod, !(is_released && may_live));
    }

    /// Adds the finalizer. The API server refuses it for a deleted resource.
    fn add_finalizer(&mut self) -> Result<(), Refused> {
        let is_deleted = self.is_deleted();
        let Some(tf) = self.objects.resource.tf.as_ref().filter(|_| !is_deleted) else {
            return Err(Refused);
        };
        let mut tf = (**tf).clone();
        tf.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
        let uid = tf.uid().unwrap_or_default();
        tf.annotations_mut().insert(KEPT.to_owned(), uid);
        self.objects.resource.tf = Some(Shared::new(tf));
        Ok(())
    }

    /// Removes the finalizer, if only the status of the resource has changed since it was observed.
    fn remove_finalizer(&mut self, observed: &Terraform) -> Result<(), Refused> {
        let Some(tf) = self.tf() else { return Ok(()) };
        let compared = |tf: &Terraform| (tf.metadata.generation, tf.metadata.finalizers.clone());
        if compared(tf) != compared(observed) {
            return Err(Refused);
        }
        let may_work = self.pods.iter().any(Pod::is_changing);
        self.check(
            Rule::ReleasedBeforeDestroy,
            self.real.size.is_none() && !may_work,
        );
        self.objects.resource.tf = None;
        Ok(())
    }

    /// Creates a Job and its pod. An existing Job with the same inputs is kept, one with other inputs is deleted.
    fn create_job(&mut self, name: &str, job: &Job) -> Result<(), Refused> {
        if let Some(existing) = self.objects.workload.jobs.get(name) {
            if existing.inputs == job.inputs {
                return Ok(());
            }
            self.delete_job(name);
            return Err(Refused);
        }
        let job = Job {
            uid: format!("job-{}", self.pods.len()),
            ..job.clone()
        };
        self.add_pod(name, &job);
        self.objects.workload.jobs.insert(name.to_owned(), job);
        Ok(())
    }

    /// Creates a pod of Job `name`.
    pub(crate) fn add_pod(&mut self, name: &str, job: &Job) {
        self.pods.push(Pod::of(name, job, self.pods.len()));
    }

    fn delete_job(&mut self, name: &str) {
        let Some(job) = self.objects.workload.jobs.remove(name) else {
            return;
        };
        for pod in &mut self.pods {
            pod.is_terminating |= pod.job_uid == job.uid;
        }
    }
}
