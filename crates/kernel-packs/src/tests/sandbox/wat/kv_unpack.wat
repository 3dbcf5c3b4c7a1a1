;; Values of quant blocks of q8_0: 34 bytes, a scale in f16 and 32 quants of 8 bits.
(module
  (memory (export "memory") 1)
  (func (export "kernel_forward") (param $d i32) (param $n i32) (result i32)
    (local $from i32) (local $end i32) (local $to i32) (local $scale f32) (local $left i32)
    (loop $request
      (local.set $from (i32.load (local.get $d)))
      (local.set $end (i32.add (local.get $from) (i32.load offset=4 (local.get $d))))
      (local.set $to (i32.load offset=16 (local.get $d)))
      (loop $block
        (local.set $scale (call $half (i32.load16_u (local.get $from))))
        (local.set $from (i32.add (local.get $from) (i32.const 2)))
        (local.set $left (i32.const 32))
        (loop $value
          (f32.store (local.get $to) (f32.mul (local.get $scale)
            (f32.convert_i32_s (i32.load8_s (local.get $from)))))
          (local.set $from (i32.add (local.get $from) (i32.const 1)))
          (local.set $to (i32.add (local.get $to) (i32.const 4)))
          (br_if $value (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
        (br_if $block (i32.lt_u (local.get $from) (local.get $end))))
      (local.set $d (i32.add (local.get $d) (i32.const 40)))
      (br_if $request (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
    (i32.const 0))
  ;; Exponent and fraction of a half as those of an f32, times 2^112; infinity and NaN keep their
  ;; exponent.
  (func $half (param $bits i32) (result f32)
    (local $x i32)
    (local.set $x (i32.shl (i32.and (local.get $bits) (i32.const 0x7fff)) (i32.const 13)))
    (if (i32.ge_u (local.get $x) (i32.const 0x0f800000))
      (then (local.set $x (i32.or (local.get $x) (i32.const 0x7f800000))))
      (else (local.set $x (i32.reinterpret_f32
        (f32.mul (f32.reinterpret_i32 (local.get $x)) (f32.const 0x1p112))))))
    (f32.reinterpret_i32 (i32.or (local.get $x)
      (i32.shl (i32.and (local.get $bits) (i32.const 0x8000)) (i32.const 16))))))
