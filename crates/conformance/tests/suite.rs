//! The suite itself: a right backend passes, and each kind of mistake is caught.

use std::panic::{AssertUnwindSafe, catch_unwind};

use plimsoll_conformance::{F32_SUMS, Fault, ModelBackend, Random, Suite};
use plimsoll_graph::ops::{BiasGrad, Linear, RmsNorm};
use plimsoll_runtime::Active;

/// Whether the suite accepts a product, a sum over rows and a norm, with two of five rows empty, from such a backend.
fn passes(fault: Fault) -> Result<(), String> {
    let random = &mut Random::new(1);
    let mut suite = Suite::over(vec![Box::new(ModelBackend::new(fault))]);
    let active = Active { tokens: 3, sequences: 1 };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let inputs = [random.tokens(5, 6), random.fixed(&[4, 6])];
        suite.check("product", Linear::forward(), &inputs, active, F32_SUMS);
        suite.check("sum", BiasGrad { cols: None }, &[random.tokens(5, 6), random.fixed(&[6])], active, F32_SUMS);
        let op = RmsNorm { eps: 1e-5, weight: false, residual: true };
        suite.check("norm", op, &[random.tokens(5, 6), random.tokens(5, 6)], active, F32_SUMS);
    }));
    outcome.map_err(|panic| panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

#[test]
fn a_right_backend_passes() {
    assert_eq!(passes(Fault::None), Ok(()));
}

#[test]
fn wrong_backends_are_caught() {
    for (fault, says) in [
        (Fault::WritesBeyond, "wrote where it must not"),
        (Fault::ChangesInput, "wrote where it must not"),
        (Fault::ReadsInactiveRows, "is NaN"),
        (Fault::FollowsAddress, "other bits"),
        (Fault::Imprecise, "expected"),
        (Fault::LeavesGap, "is NaN"),
    ] {
        let message = passes(fault).expect_err(&format!("{fault:?} went unnoticed"));
        assert!(message.contains(says), "{fault:?}: {message}");
    }
}
