//! `plimsoll bench`.

use super::print_origins;
use crate::args::BenchArgs;
use crate::error::Failure;
use crate::printer::Printer;

pub fn run(args: &BenchArgs, printer: &Printer) -> Result<(), Failure> {
    let resolved = args.common.resolve(Some(&args.file))?;
    if args.common.origins {
        print_origins(&resolved, printer);
    }
    Ok(())
}
