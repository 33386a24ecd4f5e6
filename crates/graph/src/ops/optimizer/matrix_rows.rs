//! The matrices of a parameter, for rules that look at a matrix as a whole.

use std::ops::Range;

use crate::optimizer::Matrix;
use crate::{GraphError, Shape};

/// Which rows of a parameter each Hugging Face matrix has, one behind another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatrixRows {
    /// The row behind each matrix.
    ends: Vec<usize>,
}

impl MatrixRows {
    pub fn new(matrices: &[Matrix]) -> Self {
        Self { ends: matrices.iter().map(|matrix| matrix.first_row + matrix.shape.rows()).collect() }
    }

    pub fn iter(&self) -> impl Iterator<Item = Range<usize>> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| start..end)
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// That they are the whole parameter.
    pub(super) fn check(&self, op: &'static str, shape: &Shape) -> Result<(), GraphError> {
        let ascending = self.iter().all(|rows| rows.start < rows.end);
        if ascending && self.ends.last() == Some(&shape.rows()) {
            return Ok(());
        }
        let reason = format!("matrices that end at rows {:?} do not make up a parameter of shape {shape}", self.ends);
        Err(GraphError::Invalid { op, reason })
    }
}
