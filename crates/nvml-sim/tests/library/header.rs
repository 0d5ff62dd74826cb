//! Struct layouts compared with a real `nvml.h`, if available.

use std::{
    collections::BTreeMap, env, fmt::Write as _, fs, mem::offset_of, path::Path, process::Command,
};

use nvml_wrapper_sys::bindings::*;
use tempfile::TempDir;

/// Environment variable with the header of CUDA 13 or later. Earlier headers lack structs of the bindings.
const VARIABLE: &str = "WINDLASS_NVML_HEADER";

/// C expressions with their values in the bindings.
macro_rules! expected {
    ($($type:ident $(. $field:ident)?),* $(,)?) => {
        BTreeMap::from([$(expected!(@ $type $(. $field)?)),*])
    };
    (@ $type:ident) => {
        (concat!("sizeof(", stringify!($type), ")"), size_of::<$type>())
    };
    (@ $type:ident . $field:ident) => {
        (
            concat!("offsetof(", stringify!($type), ", ", stringify!($field), ")"),
            offset_of!($type, $field),
        )
    };
}

/// Values of the expressions according to a C compiler.
fn compiled<'a>(header: &Path, expressions: impl Iterator<Item = &'a str>) -> Vec<usize> {
    let dir = TempDir::new().expect("a folder");
    let (source, program) = (dir.path().join("sizes.c"), dir.path().join("sizes"));
    let mut code = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"{}\"\nint main(void) {{\n",
        header.display()
    );
    for expression in expressions {
        writeln!(code, "printf(\"%zu\\n\", {expression});").expect("a string accepts all text");
    }
    fs::write(&source, code + "return 0;\n}\n").expect("a file");
    let cc = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let compiler = Command::new(cc).arg("-o").arg(&program).arg(&source).output();
    let compiler = compiler.expect("a C compiler");
    assert!(compiler.status.success(), "{}", String::from_utf8_lossy(&compiler.stderr));
    let output = Command::new(&program).output().expect("runs").stdout;
    let output = String::from_utf8(output).expect("digits");
    output.lines().map(|line| line.parse().expect("a number")).collect()
}

#[test]
fn structs_are_laid_out_as_in_the_header() {
    let Some(header) = env::var_os(VARIABLE) else {
        eprintln!("SKIPPED: set {VARIABLE} to the path of an nvml.h");
        return;
    };
    let expected = expected![
        nvmlBAR1Memory_t,
        nvmlComputeInstanceInfo_t,
        nvmlComputeInstanceProfileInfo_t,
        nvmlComputeInstanceProfileInfo_v2_t,
        nvmlComputeInstanceProfileInfo_v3_t,
        nvmlDeviceAddressingMode_t,
        nvmlDeviceAttributes_t,
        nvmlEccErrorCounts_t,
        nvmlEventData_t,
        nvmlFieldValue_t,
        nvmlGpuFabricInfo_t,
        nvmlGpuFabricInfo_v2_t,
        nvmlGpuFabricInfo_v3_t,
        nvmlGpuInstanceInfo_t,
        nvmlGpuInstancePlacement_t,
        nvmlGpuInstanceProfileInfo_t,
        nvmlGpuInstanceProfileInfo_v2_t,
        nvmlGpuInstanceProfileInfo_v3_t,
        nvmlMarginTemperature_v1_t,
        nvmlMemory_t,
        nvmlMemory_v2_t,
        nvmlPciInfoExt_t,
        nvmlPciInfo_t,
        nvmlProcessInfo_v1_t,
        nvmlProcessInfo_v2_t,
        nvmlRowRemapperHistogramValues_t,
        nvmlTemperature_v1_t,
        nvmlUtilization_t,
        nvmlDeviceAttributes_t.memorySizeMB,
        nvmlEventData_t.eventData,
        nvmlEventData_t.gpuInstanceId,
        nvmlFieldValue_t.nvmlReturn,
        nvmlFieldValue_t.value,
        nvmlGpuFabricInfo_v2_t.state,
        nvmlGpuFabricInfo_v3_t.healthSummary,
        nvmlGpuInstanceProfileInfo_v2_t.memorySizeMB,
        nvmlGpuInstanceProfileInfo_v2_t.name,
        nvmlMemory_v2_t.total,
        nvmlPciInfo_t.busId,
        nvmlPciInfo_t.pciSubSystemId,
        nvmlProcessInfo_v2_t.gpuInstanceId,
    ];
    let compiled = compiled(Path::new(&header), expected.keys().copied());
    let compiled: BTreeMap<_, _> = expected.keys().copied().zip(compiled).collect();
    assert_eq!(compiled, expected);
}
