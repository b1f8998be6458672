//! What one contender did in one workload.

use serde::Serialize;

use crate::recorder::{Figure, OperationSummary, Recorder};
use crate::run::Case;

/// What one contender did in one workload.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BenchReport {
    /// Who.
    pub system: String,
    /// It is lowkey, asked in one way or another.
    #[serde(skip)]
    pub is_lowkey: bool,
    /// What: the workload's name.
    pub workload: &'static str,
    /// On how many nodes.
    pub nodes: usize,
    /// With how many clients, leases or streams.
    pub size: usize,
    /// How long it was measured.
    pub seconds: f64,
    /// Times, by operation.
    pub operations: Vec<OperationSummary>,
    /// What else there is to tell.
    pub figures: Vec<Figure>,
}

impl BenchReport {
    pub(crate) fn new(
        system: String,
        is_lowkey: bool,
        nodes: usize,
        case: &Case,
        recorder: &Recorder,
    ) -> Self {
        let (operations, figures, measured) = recorder.summary(case.workload.is_pairs_alone());
        Self {
            system,
            is_lowkey,
            workload: case.workload.name(),
            nodes,
            size: case.size,
            seconds: measured.as_secs_f64(),
            operations,
            figures,
        }
    }

    /// The times of one operation.
    pub fn operation(&self, name: &str) -> Option<&OperationSummary> {
        self.operations.iter().find(|summary| summary.operation == name)
    }

    /// A single figure.
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }
}
