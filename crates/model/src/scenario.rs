//! Scenarios: the resource, and how many faults and acts of the user the search may combine.

/// Backend of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// State in Secrets. The lock is in the run report.
    Managed,
    /// State in a bucket. The engine holds the lock, and the runner releases the lock of an ended pod.
    S3,
}

/// Defect of the model, with which tests verify that the search finds a broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Controllers write record and report without resource version.
    WritesWithoutVersion,
    /// Pods execute the run without a claim.
    SkipsClaim,
    /// Pods apply a plan that needs approval without an approval.
    SkipsApproval,
    /// Controllers observe all pods as ended.
    IgnoresPods,
    /// Controllers create the Job without the pin.
    SkipsPin,
    /// Pods end without a report.
    LosesReport,
}

/// Number of faults and acts of the user that are left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Changes of the leader.
    pub elections: u8,
    /// Controllers that end between two writes.
    pub crashes: u8,
    /// Writes of controllers or pods that succeed although their response is lost.
    pub lost_answers: u8,
    /// Reconciles that read an outdated watch cache.
    pub stale_reads: u8,
    /// Pods that end without a report.
    pub lost_pods: u8,
    /// Second pods of a Job.
    pub second_pods: u8,
    /// Runs that fail because of the module.
    pub failures: u8,
    /// Advances of the clock by one hour.
    pub hours: u8,
    /// Changes of a variable.
    pub edits: u8,
    /// Approvals of the plan in the status.
    pub approvals: u8,
    /// Cancellations of the run in the status.
    pub cancellations: u8,
    /// Deletions of the resource.
    pub deletions: u8,
}

impl Budget {
    /// No fault and no act.
    pub const NONE: Self = Self {
        elections: 0,
        crashes: 0,
        lost_answers: 0,
        stale_reads: 0,
        lost_pods: 0,
        second_pods: 0,
        failures: 0,
        hours: 0,
        edits: 0,
        approvals: 0,
        cancellations: 0,
        deletions: 0,
    };

    /// Returns the budget with `extra` more of each fault and act that it has. A resource is deleted once.
    #[must_use]
    pub fn increased_by(self, extra: u8) -> Self {
        let increased = |count: u8| if count == 0 { 0 } else { count + extra };
        Self {
            elections: increased(self.elections),
            crashes: increased(self.crashes),
            lost_answers: increased(self.lost_answers),
            stale_reads: increased(self.stale_reads),
            lost_pods: increased(self.lost_pods),
            second_pods: increased(self.second_pods),
            failures: increased(self.failures),
            hours: increased(self.hours),
            edits: increased(self.edits),
            approvals: increased(self.approvals),
            cancellations: increased(self.cancellations),
            deletions: self.deletions,
        }
    }
}

/// Initial state and bounds of a search.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Name in the output of tests.
    pub name: &'static str,
    /// Whether `spec.approval.mode` is `Manual`.
    pub is_manual: bool,
    /// Whether only the leader observes and writes. A write that the leader has sent may still arrive after another controller leads. Without
    /// the Lease, both controllers observe and write at any time.
    pub has_lease: bool,
    /// Backend of the state.
    pub backend: Backend,
    /// Whether the resource is applied at the start. Otherwise its run record does not exist.
    pub is_applied: bool,
    /// Faults and acts of the user.
    pub budget: Budget,
    /// Defect of the model; `None` outside of the tests of the search itself.
    pub defect: Option<Defect>,
}
