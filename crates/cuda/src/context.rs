//! A card's primary context, after checks that the driver will do.

use cudarc::driver::{result, sys};

use crate::error::{CudaError, driver_error, reason};

/// The first driver of CUDA 12, which every supported card and library is content with.
const DRIVER_VERSION_MIN: i32 = 12_000;

/// The card's primary context.
pub(crate) struct Context {
    pub(crate) device: sys::CUdevice,
    handle: sys::CUcontext,
}

/// The card of that number, before anything is taken of it.
pub(crate) fn find_card(ordinal: usize) -> Result<sys::CUdevice, CudaError> {
    check_driver()?;
    result::init().map_err(|error| CudaError::NoDevice { reason: reason(error) })?;
    let count = result::device::get_count().map_err(|error| CudaError::NoDevice { reason: reason(error) })?;
    if count == 0 {
        return Err(CudaError::NoDevice { reason: "the driver lists none".to_owned() });
    }
    if ordinal >= count as usize {
        return Err(CudaError::NoSuchDevice { ordinal, count: count as usize });
    }
    result::device::get(ordinal as i32).map_err(driver_error("cuDeviceGet"))
}

impl Context {
    pub(crate) fn new(device: sys::CUdevice) -> Result<Self, CudaError> {
        // SAFETY: the device exists.
        let handle =
            unsafe { result::primary_ctx::retain(device) }.map_err(driver_error("cuDevicePrimaryCtxRetain"))?;
        let context = Self { device, handle };
        context.bind()?;
        // Drivers keep a kibibyte of stack for every thread the card can hold, 264 MiB of an H200. Kernels without calls
        // need none, and those whose registers spill get theirs as they are loaded. A driver without this limit keeps what
        // it keeps.
        // SAFETY: the context is current.
        let _ = unsafe { sys::cuCtxSetLimit(sys::CUlimit_enum::CU_LIMIT_STACK_SIZE, 0) };
        Ok(context)
    }

    pub(crate) fn attribute(&self, attribute: sys::CUdevice_attribute) -> Result<u32, CudaError> {
        // SAFETY: the device exists.
        unsafe { result::device::get_attribute(self.device, attribute) }
            .map(|value| value as u32)
            .map_err(driver_error("cuDeviceGetAttribute"))
    }

    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: retained until dropped.
        unsafe { result::ctx::set_current(self.handle) }.map_err(driver_error("cuCtxSetCurrent"))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, released once.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Such as 13000 for CUDA 13.0; 0 where the driver does not tell.
pub(crate) fn driver_version() -> i32 {
    let mut found = 0;
    // SAFETY: writes one integer; needs no initialisation.
    let status = unsafe { sys::cuDriverGetVersion(&raw mut found) };
    status.result().map_or(0, |()| found)
}

fn check_driver() -> Result<(), CudaError> {
    let found = driver_version();
    if found < DRIVER_VERSION_MIN {
        return Err(CudaError::DriverTooOld { found, needed: DRIVER_VERSION_MIN });
    }
    Ok(())
}
