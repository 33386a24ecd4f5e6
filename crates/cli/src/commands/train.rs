//! `plimsoll train`.

use super::print_origins;
use crate::args::TrainArgs;
use crate::error::Failure;
use crate::printer::Printer;

pub fn run(args: &TrainArgs, printer: &Printer) -> Result<(), Failure> {
    let resolved = args.common.resolve(args.file.as_deref())?;
    if args.common.origins {
        print_origins(&resolved, printer);
    }
    Ok(())
}
