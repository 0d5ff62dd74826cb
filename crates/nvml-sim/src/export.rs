//! Macro that exports functions of NVIDIA's libraries.

/// Exports functions with C linkage. Their bodies return [`crate::status::NvmlResult`]. Functions that share a body are
/// listed in brackets: `fn [nvmlInit nvmlInit_v2]() { .. }`.
macro_rules! export {
    () => {};
    ($(#[$meta:meta])* fn [$($name:ident)+] $parameters:tt $body:block $($rest:tt)*) => {
        $(export! { fn $name $parameters $body })+
        export! { $($rest)* }
    };
    (
        $(#[$meta:meta])*
        fn $name:ident ($($parameter:ident: $type:ty),* $(,)?) $body:block
        $($rest:tt)*
    ) => {
        $(#[$meta])*
        // SAFETY: the name is NVML's or CUDA's. A process loads this library in place of NVIDIA's, so the symbol
        // takes the place of NVIDIA's.
        #[unsafe(no_mangle)]
        extern "C" fn $name($($parameter: $type),*) -> $crate::status::Code {
            $crate::status::run_call(|| $body)
        }
        export! { $($rest)* }
    };
}
