//! The suite itself: a right backend passes, and each kind of mistake is caught.

use std::panic::{AssertUnwindSafe, catch_unwind};

use plimsoll_conformance::{F32_SUMS, Fault, ModelBackend, Random, Rounding, Suite, card_asked_for, fp8_sums_of};
use plimsoll_cpu::CpuBackend;
use plimsoll_graph::ops::{BiasGrad, Linear, RmsNorm};
use plimsoll_graph::{DType, Shape, WeightFormat};
use plimsoll_runtime::Active;

/// Whether the suite accepts a product, a sum over rows and a norm, with two of five rows empty, from such a backend.
fn passes(fault: Fault) -> Result<(), String> {
    let random = &mut Random::new(1);
    let mut suite = Suite::over(vec![Box::new(ModelBackend::new(fault))]);
    let active = Active::one(3, 1);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let inputs = [random.tokens(5, 6), random.fixed(&[4, 6])];
        suite.check("product", Linear::forward(), &inputs, active, F32_SUMS);
        suite.check("sum", BiasGrad { cols: None }, &[random.tokens(5, 6), random.fixed(&[6])], active, F32_SUMS);
        let op = RmsNorm { weight: false, residual: true, ..RmsNorm::new(1e-5) };
        suite.check("norm", op, &[random.tokens(5, 6), random.tokens(5, 6)], active, F32_SUMS);
    }));
    said(outcome)
}

/// The same with tokens and weights in sixteen bits, and the sum in float32.
fn passes_in_sixteen_bits(fault: Fault) -> Result<(), String> {
    let random = &mut Random::new(2);
    let mut suite = Suite::over(vec![Box::new(ModelBackend::new(fault))]);
    let active = Active::one(3, 1);
    let once = Rounding::once(F32_SUMS);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let inputs = [random.tokens(5, 6), random.fixed(&[4, 6])];
        suite.check_sixteen("product", Linear::forward(), &inputs, &[0, 1], active, once);
        let inputs = [random.tokens(5, 6), random.fixed(&[6])];
        suite.check_sixteen("sum", BiasGrad { cols: None }, &inputs, &[0], active, once);
        let op = RmsNorm { weight: false, residual: true, ..RmsNorm::new(1e-5) };
        suite.check_sixteen("norm", op, &[random.tokens(5, 6), random.tokens(5, 6)], &[0, 1], active, once);
    }));
    said(outcome)
}

/// A product with a weight in four bits and nested scales, and one with codes of e4m3.
fn passes_in_few_bits(fault: Fault) -> Result<(), String> {
    let random = &mut Random::new(4);
    let mut suite = Suite::over(vec![Box::new(ModelBackend::new(fault))]);
    let active = Active::one(3, 1);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        for (format, fp8) in [(WeightFormat::Nf4, false), (WeightFormat::E4m3, true)] {
            let storage = format.storage(DType::F32, &[Shape::new(&[128, 128])]).expect("whole blocks");
            let inputs = [random.tokens(5, 128), random.fixed(&[128, 128]).stored_as(storage)];
            suite.check("few bits", Linear { fp8, ..Linear::forward() }, &inputs, active, fp8_sums_of(128));
        }
    }));
    said(outcome)
}

/// What a panic had to say.
fn said(outcome: std::thread::Result<()>) -> Result<(), String> {
    outcome.map_err(|panic| panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

#[test]
fn a_right_backend_passes() {
    assert_eq!(passes(Fault::None), Ok(()));
    assert_eq!(passes_in_sixteen_bits(Fault::None), Ok(()));
    assert_eq!(passes_in_few_bits(Fault::None), Ok(()));
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
        for passes in [passes, passes_in_sixteen_bits] {
            let message = passes(fault).expect_err(&format!("{fault:?} went unnoticed"));
            assert!(message.contains(says), "{fault:?}: {message}");
        }
    }
}

#[test]
fn codes_read_wrong_are_caught() {
    for fault in [Fault::SwapsCodes, Fault::ForgetsOffsets, Fault::KeepsRows] {
        let message = passes_in_few_bits(fault).expect_err(&format!("{fault:?} went unnoticed"));
        assert!(message.contains("expected"), "{fault:?}: {message}");
    }
}

#[test]
fn cutting_off_is_not_rounding() {
    assert_eq!(passes(Fault::CutsOff), Ok(()));
    let message = passes_in_sixteen_bits(Fault::CutsOff).expect_err("cutting off went unnoticed");
    assert!(message.contains("expected"), "{message}");
}

/// The CPU backend has float32 only. A sixteen-bit case that nobody ran must not look like one that passed.
#[test]
fn a_case_that_ran_nowhere_does_not_pass() {
    let mut suite = Suite::over(vec![Box::new(CpuBackend::new(Some(1)))]);
    assert_eq!(suite.coverage(), [vec![], vec!["cpu (1 workers)".to_owned()]]);
    let random = &mut Random::new(3);
    let inputs = [random.tokens(2, 8), random.fixed(&[3, 8])];
    let active = Active::one(2, 1);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        suite.check_sixteen("nowhere", Linear::forward(), &inputs, &[0, 1], active, Rounding::once(F32_SUMS));
    }));
    let message = said(outcome).expect_err("it passed");
    assert!(message.contains("ran on no backend"), "{message}");
}

/// Sixteen bits are checked on the card where one was asked for, and on nothing in its place.
#[test]
fn sixteen_bits_are_checked_on_the_card_that_was_asked_for() {
    let [checked, skipped] = Suite::new().coverage();
    assert_eq!(skipped, ["cpu (1 workers)", "cpu (2 workers)"]);
    assert_eq!(checked.len(), 1, "{checked:?}");
    assert_eq!(checked[0].starts_with("cpu storing sixteen bits"), !card_asked_for(), "{checked:?}");
}
