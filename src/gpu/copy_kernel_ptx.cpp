// Made by tools/make_ptx.sh from copy_kernel.cu; change that one.
// sha256 cc1ab61042ec879e3873a7b7a824a4d950ce4f9f0cbf30c6990e344450e0d21b
#include "gpu/copy_kernel.hpp"

namespace inrush::engine {

const char* const copy_kernel_ptx = R"ptx(
.version 7.0
.target sm_75
.address_size 64
.visible .entry inrush_copy_runs(
.param .u64 inrush_copy_runs_param_0,
.param .u32 inrush_copy_runs_param_1
) {
.reg .pred %p<61>;
.reg .b16 %rs<8>;
.reg .b32 %r<693>;
.reg .b64 %rd<127>;
ld.param.u64 %rd65, [inrush_copy_runs_param_0]; ld.param.u32 %r129, [inrush_copy_runs_param_1];
mov.u32 %r130, %tid.x; and.b32 %r1, %r130, 31; mov.u32 %r2, %ntid.x; mov.u32 %r131, %ctaid.x;
mad.lo.s32 %r132, %r131, %r2, %r130; shr.u32 %r656, %r132, 5; setp.ge.u32 %p1, %r656, %r129;
@%p1 bra $L__BB0_71; cvt.u64.u32 %rd1, %r1; or.b64 %rd2, %rd1, 96; or.b64 %rd4, %rd1, 128;
or.b64 %rd5, %rd1, 224; or.b64 %rd6, %rd1, 256; or.b64 %rd7, %rd1, 352; or.b64 %rd8, %rd1, 384;
or.b64 %rd9, %rd1, 480; mov.u32 %r133, %nctaid.x; mul.lo.s32 %r134, %r133, %r2; shr.u32 %r4, %r134, 5;
cvta.to.global.u64 %rd10, %rd65; $L__BB0_2: mul.wide.u32 %rd67, %r656, 24; add.s64 %rd68, %rd10, %rd67;
ld.global.u64 %rd11, [%rd68]; ld.global.u64 %rd12, [%rd68+8]; ld.global.u64 %rd13, [%rd68+16];
setp.lt.u64 %p2, %rd13, 64; @%p2 bra $L__BB0_67; bra.uni $L__BB0_3; $L__BB0_67:
setp.le.u64 %p58, %rd13, %rd1; @%p58 bra $L__BB0_70; mov.u64 %rd126, %rd1; $L__BB0_69:
add.s64 %rd107, %rd11, %rd126; ld.u8 %rs7, [%rd107]; add.s64 %rd108, %rd12, %rd126;
st.u8 [%rd108], %rs7; add.s64 %rd126, %rd126, 32; setp.lt.u64 %p59, %rd126, %rd13; @%p59 bra $L__BB0_69;
bra.uni $L__BB0_70; $L__BB0_3: neg.s64 %rd69, %rd12; and.b64 %rd14, %rd69, 15;
setp.le.u64 %p3, %rd14, %rd1; @%p3 bra $L__BB0_5; add.s64 %rd70, %rd11, %rd1; ld.u8 %rs2, [%rd70];
add.s64 %rd71, %rd12, %rd1; st.u8 [%rd71], %rs2; $L__BB0_5: add.s64 %rd72, %rd11, %rd14;
add.s64 %rd15, %rd12, %rd14; cvt.u32.u64 %r6, %rd72; and.b32 %r135, %r6, 15; and.b64 %rd16, %rd72, 15;
sub.s64 %rd73, %rd14, %rd16; add.s64 %rd17, %rd11, %rd73; sub.s64 %rd18, %rd13, %rd14;
shr.u64 %rd19, %rd18, 4; setp.eq.s32 %p4, %r135, 0; @%p4 bra $L__BB0_50; setp.eq.s64 %p5, %rd19, 0;
@%p5 bra $L__BB0_65; cvt.u32.u64 %r136, %rd16; shl.b32 %r137, %r6, 3; and.b32 %r7, %r137, 24;
shr.u32 %r138, %r136, 2; cvt.u16.u32 %rs1, %r138; add.s64 %rd75, %rd19, -1; shr.u64 %rd76, %rd75, 5;
add.s64 %rd20, %rd76, 1; and.b64 %rd21, %rd20, 1; setp.eq.s64 %p6, %rd76, 0; mov.u64 %rd115, 0;
@%p6 bra $L__BB0_36; sub.s64 %rd114, %rd20, %rd21; mov.u64 %rd115, 0; $L__BB0_9:
add.s64 %rd25, %rd115, %rd1; setp.gt.u64 %p7, %rd25, %rd19; shl.b64 %rd78, %rd25, 4;
add.s64 %rd26, %rd17, %rd78; mov.u32 %r12, 0; mov.u32 %r13, %r12; mov.u32 %r14, %r12;
mov.u32 %r660, %r12; @%p7 bra $L__BB0_11; ld.v4.u32 {%r660, %r14, %r13, %r12}, [%rd26]; $L__BB0_11:
add.s64 %rd110, %rd115, %rd1; mov.u32 %r147, 31; mov.u32 %r148, 1; mov.u32 %r149, -1;
shfl.sync.down.b32 %r27|%p8, %r660, %r148, %r147, %r149;
shfl.sync.down.b32 %r26|%p9, %r14, %r148, %r147, %r149;
shfl.sync.down.b32 %r662|%p10, %r13, %r148, %r147, %r149;
shfl.sync.down.b32 %r661|%p11, %r12, %r148, %r147, %r149; setp.ge.u64 %p12, %rd110, %rd19;
setp.ne.s32 %p13, %r1, 31; or.pred %p14, %p13, %p12; @%p14 bra $L__BB0_13;
ld.v4.u32 {%r27, %r26, %r662, %r661}, [%rd26+16]; $L__BB0_13: add.s64 %rd27, %rd15, %rd78;
@%p12 bra $L__BB0_22; setp.eq.s16 %p16, %rs1, 0; @%p16 bra $L__BB0_19; setp.eq.s16 %p17, %rs1, 1;
@%p17 bra $L__BB0_18; setp.ne.s16 %p18, %rs1, 2; @%p18 bra $L__BB0_20;
shf.r.wrap.b32 %r665, %r13, %r12, %r7; shf.r.wrap.b32 %r666, %r12, %r27, %r7;
shf.r.wrap.b32 %r667, %r27, %r26, %r7; shf.r.wrap.b32 %r668, %r26, %r662, %r7; bra.uni $L__BB0_21;
$L__BB0_19: shf.r.wrap.b32 %r665, %r660, %r14, %r7; shf.r.wrap.b32 %r666, %r14, %r13, %r7;
shf.r.wrap.b32 %r667, %r13, %r12, %r7; shf.r.wrap.b32 %r668, %r12, %r27, %r7; bra.uni $L__BB0_21;
$L__BB0_18: shf.r.wrap.b32 %r665, %r14, %r13, %r7; shf.r.wrap.b32 %r666, %r13, %r12, %r7;
shf.r.wrap.b32 %r667, %r12, %r27, %r7; shf.r.wrap.b32 %r668, %r27, %r26, %r7; bra.uni $L__BB0_21;
$L__BB0_20: shf.r.wrap.b32 %r665, %r12, %r27, %r7; shf.r.wrap.b32 %r666, %r27, %r26, %r7;
shf.r.wrap.b32 %r667, %r26, %r662, %r7; shf.r.wrap.b32 %r668, %r662, %r661, %r7; $L__BB0_21:
st.v4.u32 [%rd27], {%r665, %r666, %r667, %r668}; $L__BB0_22: add.s64 %rd109, %rd115, %rd1;
add.s64 %rd28, %rd109, 32; setp.gt.u64 %p19, %rd28, %rd19; mov.u32 %r52, 0; mov.u32 %r53, %r52;
mov.u32 %r54, %r52; mov.u32 %r672, %r52; @%p19 bra $L__BB0_24;
ld.v4.u32 {%r672, %r54, %r53, %r52}, [%rd26+512]; $L__BB0_24: mov.u32 %r226, 31; mov.u32 %r227, 1;
mov.u32 %r228, -1; shfl.sync.down.b32 %r67|%p20, %r672, %r227, %r226, %r228;
shfl.sync.down.b32 %r66|%p21, %r54, %r227, %r226, %r228;
shfl.sync.down.b32 %r674|%p22, %r53, %r227, %r226, %r228;
shfl.sync.down.b32 %r673|%p23, %r52, %r227, %r226, %r228; setp.ge.u64 %p24, %rd28, %rd19;
or.pred %p26, %p13, %p24; @%p26 bra $L__BB0_26; ld.v4.u32 {%r67, %r66, %r674, %r673}, [%rd26+528];
$L__BB0_26: @%p24 bra $L__BB0_35; setp.eq.s16 %p28, %rs1, 0; @%p28 bra $L__BB0_32;
setp.eq.s16 %p29, %rs1, 1; @%p29 bra $L__BB0_31; setp.ne.s16 %p30, %rs1, 2; @%p30 bra $L__BB0_33;
shf.r.wrap.b32 %r677, %r53, %r52, %r7; shf.r.wrap.b32 %r678, %r52, %r67, %r7;
shf.r.wrap.b32 %r679, %r67, %r66, %r7; shf.r.wrap.b32 %r680, %r66, %r674, %r7; bra.uni $L__BB0_34;
$L__BB0_32: shf.r.wrap.b32 %r677, %r672, %r54, %r7; shf.r.wrap.b32 %r678, %r54, %r53, %r7;
shf.r.wrap.b32 %r679, %r53, %r52, %r7; shf.r.wrap.b32 %r680, %r52, %r67, %r7; bra.uni $L__BB0_34;
$L__BB0_31: shf.r.wrap.b32 %r677, %r54, %r53, %r7; shf.r.wrap.b32 %r678, %r53, %r52, %r7;
shf.r.wrap.b32 %r679, %r52, %r67, %r7; shf.r.wrap.b32 %r680, %r67, %r66, %r7; bra.uni $L__BB0_34;
$L__BB0_33: shf.r.wrap.b32 %r677, %r52, %r67, %r7; shf.r.wrap.b32 %r678, %r67, %r66, %r7;
shf.r.wrap.b32 %r679, %r66, %r674, %r7; shf.r.wrap.b32 %r680, %r674, %r673, %r7; $L__BB0_34:
st.v4.u32 [%rd27+512], {%r677, %r678, %r679, %r680}; $L__BB0_35: add.s64 %rd115, %rd115, 64;
add.s64 %rd114, %rd114, -2; setp.ne.s64 %p31, %rd114, 0; @%p31 bra $L__BB0_9; $L__BB0_36:
setp.eq.s64 %p32, %rd21, 0; @%p32 bra $L__BB0_65; add.s64 %rd32, %rd115, %rd1;
setp.gt.u64 %p33, %rd32, %rd19; shl.b64 %rd80, %rd32, 4; add.s64 %rd33, %rd17, %rd80; mov.u32 %r92, 0;
mov.u32 %r93, %r92; mov.u32 %r94, %r92; mov.u32 %r684, %r92; @%p33 bra $L__BB0_39;
ld.v4.u32 {%r684, %r94, %r93, %r92}, [%rd33]; $L__BB0_39: mov.u32 %r305, 31; mov.u32 %r306, 1;
mov.u32 %r307, -1; shfl.sync.down.b32 %r107|%p34, %r684, %r306, %r305, %r307;
shfl.sync.down.b32 %r106|%p35, %r94, %r306, %r305, %r307;
shfl.sync.down.b32 %r686|%p36, %r93, %r306, %r305, %r307;
shfl.sync.down.b32 %r685|%p37, %r92, %r306, %r305, %r307; setp.ge.u64 %p38, %rd32, %rd19;
setp.ne.s32 %p39, %r1, 31; or.pred %p40, %p39, %p38; @%p40 bra $L__BB0_41;
ld.v4.u32 {%r107, %r106, %r686, %r685}, [%rd33+16]; $L__BB0_41: @%p38 bra $L__BB0_65;
setp.eq.s16 %p42, %rs1, 0; @%p42 bra $L__BB0_47; setp.eq.s16 %p43, %rs1, 1; @%p43 bra $L__BB0_46;
setp.ne.s16 %p44, %rs1, 2; @%p44 bra $L__BB0_48; shf.r.wrap.b32 %r689, %r93, %r92, %r7;
shf.r.wrap.b32 %r690, %r92, %r107, %r7; shf.r.wrap.b32 %r691, %r107, %r106, %r7;
shf.r.wrap.b32 %r692, %r106, %r686, %r7; bra.uni $L__BB0_49; $L__BB0_50: setp.ge.u64 %p45, %rd2, %rd19;
mov.u64 %rd118, %rd1; @%p45 bra $L__BB0_58; mov.u64 %rd112, -97; sub.s64 %rd111, %rd112, %rd1;
add.s64 %rd34, %rd111, %rd19; shr.u64 %rd84, %rd34, 7; add.s64 %rd85, %rd84, 1; and.b64 %rd35, %rd85, 3;
setp.eq.s64 %p46, %rd35, 0; mov.u64 %rd116, %rd2; mov.u64 %rd117, %rd1; @%p46 bra $L__BB0_55;
shl.b64 %rd86, %rd1, 4; add.s64 %rd36, %rd17, %rd86;
ld.v4.u32 {%r376, %r377, %r378, %r379}, [%rd36+512];
ld.v4.u32 {%r384, %r385, %r386, %r387}, [%rd36+1024];
ld.v4.u32 {%r392, %r393, %r394, %r395}, [%rd36+1536]; add.s64 %rd37, %rd15, %rd86;
ld.v4.u32 {%r400, %r401, %r402, %r403}, [%rd36]; st.v4.u32 [%rd37], {%r400, %r401, %r402, %r403};
st.v4.u32 [%rd37+512], {%r376, %r377, %r378, %r379};
st.v4.u32 [%rd37+1024], {%r384, %r385, %r386, %r387};
st.v4.u32 [%rd37+1536], {%r392, %r393, %r394, %r395}; setp.eq.s64 %p47, %rd35, 1; mov.u64 %rd116, %rd5;
mov.u64 %rd117, %rd4; mov.u64 %rd118, %rd4; @%p47 bra $L__BB0_55;
ld.v4.u32 {%r408, %r409, %r410, %r411}, [%rd36+2560];
ld.v4.u32 {%r416, %r417, %r418, %r419}, [%rd36+3072];
ld.v4.u32 {%r424, %r425, %r426, %r427}, [%rd36+3584];
ld.v4.u32 {%r432, %r433, %r434, %r435}, [%rd36+2048];
st.v4.u32 [%rd37+2048], {%r432, %r433, %r434, %r435};
st.v4.u32 [%rd37+2560], {%r408, %r409, %r410, %r411};
st.v4.u32 [%rd37+3072], {%r416, %r417, %r418, %r419};
st.v4.u32 [%rd37+3584], {%r424, %r425, %r426, %r427}; setp.eq.s64 %p48, %rd35, 2; mov.u64 %rd116, %rd7;
mov.u64 %rd117, %rd6; mov.u64 %rd118, %rd6; @%p48 bra $L__BB0_55;
ld.v4.u32 {%r440, %r441, %r442, %r443}, [%rd36+4608];
ld.v4.u32 {%r448, %r449, %r450, %r451}, [%rd36+5120];
ld.v4.u32 {%r456, %r457, %r458, %r459}, [%rd36+5632];
ld.v4.u32 {%r464, %r465, %r466, %r467}, [%rd36+4096];
st.v4.u32 [%rd37+4096], {%r464, %r465, %r466, %r467};
st.v4.u32 [%rd37+4608], {%r440, %r441, %r442, %r443};
st.v4.u32 [%rd37+5120], {%r448, %r449, %r450, %r451};
st.v4.u32 [%rd37+5632], {%r456, %r457, %r458, %r459}; mov.u64 %rd116, %rd9; mov.u64 %rd117, %rd8;
mov.u64 %rd118, %rd8; $L__BB0_55: setp.lt.u64 %p49, %rd34, 384; @%p49 bra $L__BB0_58;
shl.b64 %rd87, %rd117, 4; or.b64 %rd88, %rd87, %rd14; add.s64 %rd89, %rd12, %rd88;
add.s64 %rd120, %rd89, 4096; sub.s64 %rd90, %rd88, %rd16; add.s64 %rd91, %rd11, %rd90;
add.s64 %rd119, %rd91, 4096; $L__BB0_57: ld.v4.u32 {%r472, %r473, %r474, %r475}, [%rd119+-3584];
ld.v4.u32 {%r480, %r481, %r482, %r483}, [%rd119+-3072]; shl.b64 %rd92, %rd116, 4;
add.s64 %rd93, %rd17, %rd92; ld.v4.u32 {%r488, %r489, %r490, %r491}, [%rd93];
ld.v4.u32 {%r496, %r497, %r498, %r499}, [%rd119+-4096];
st.v4.u32 [%rd120+-4096], {%r496, %r497, %r498, %r499};
st.v4.u32 [%rd120+-3584], {%r472, %r473, %r474, %r475};
st.v4.u32 [%rd120+-3072], {%r480, %r481, %r482, %r483}; add.s64 %rd94, %rd15, %rd92;
st.v4.u32 [%rd94], {%r488, %r489, %r490, %r491}; ld.v4.u32 {%r504, %r505, %r506, %r507}, [%rd119+-1536];
ld.v4.u32 {%r512, %r513, %r514, %r515}, [%rd119+-1024];
ld.v4.u32 {%r520, %r521, %r522, %r523}, [%rd119+-512];
ld.v4.u32 {%r528, %r529, %r530, %r531}, [%rd119+-2048];
st.v4.u32 [%rd120+-2048], {%r528, %r529, %r530, %r531};
st.v4.u32 [%rd120+-1536], {%r504, %r505, %r506, %r507};
st.v4.u32 [%rd120+-1024], {%r512, %r513, %r514, %r515};
st.v4.u32 [%rd120+-512], {%r520, %r521, %r522, %r523};
ld.v4.u32 {%r536, %r537, %r538, %r539}, [%rd119+512];
ld.v4.u32 {%r544, %r545, %r546, %r547}, [%rd119+1024];
ld.v4.u32 {%r552, %r553, %r554, %r555}, [%rd119+1536]; ld.v4.u32 {%r560, %r561, %r562, %r563}, [%rd119];
st.v4.u32 [%rd120], {%r560, %r561, %r562, %r563}; st.v4.u32 [%rd120+512], {%r536, %r537, %r538, %r539};
st.v4.u32 [%rd120+1024], {%r544, %r545, %r546, %r547};
st.v4.u32 [%rd120+1536], {%r552, %r553, %r554, %r555};
ld.v4.u32 {%r568, %r569, %r570, %r571}, [%rd119+2560];
ld.v4.u32 {%r576, %r577, %r578, %r579}, [%rd119+3072];
ld.v4.u32 {%r584, %r585, %r586, %r587}, [%rd119+3584];
ld.v4.u32 {%r592, %r593, %r594, %r595}, [%rd119+2048];
st.v4.u32 [%rd120+2048], {%r592, %r593, %r594, %r595};
st.v4.u32 [%rd120+2560], {%r568, %r569, %r570, %r571};
st.v4.u32 [%rd120+3072], {%r576, %r577, %r578, %r579};
st.v4.u32 [%rd120+3584], {%r584, %r585, %r586, %r587}; add.s64 %rd118, %rd117, 512;
add.s64 %rd116, %rd117, 608; add.s64 %rd120, %rd120, 8192; add.s64 %rd119, %rd119, 8192;
setp.lt.u64 %p50, %rd116, %rd19; mov.u64 %rd117, %rd118; @%p50 bra $L__BB0_57; $L__BB0_58:
setp.ge.u64 %p51, %rd118, %rd19; @%p51 bra $L__BB0_65; not.b64 %rd95, %rd118;
add.s64 %rd52, %rd19, %rd95; shr.u64 %rd96, %rd52, 5; add.s64 %rd97, %rd96, 1; and.b64 %rd53, %rd97, 3;
setp.eq.s64 %p52, %rd53, 0; mov.u64 %rd124, %rd118; @%p52 bra $L__BB0_63; shl.b64 %rd98, %rd118, 4;
add.s64 %rd55, %rd15, %rd98; add.s64 %rd54, %rd17, %rd98;
ld.v4.u32 {%r600, %r601, %r602, %r603}, [%rd54]; st.v4.u32 [%rd55], {%r600, %r601, %r602, %r603};
add.s64 %rd124, %rd118, 32; setp.eq.s64 %p53, %rd53, 1; @%p53 bra $L__BB0_63;
ld.v4.u32 {%r608, %r609, %r610, %r611}, [%rd54+512];
st.v4.u32 [%rd55+512], {%r608, %r609, %r610, %r611}; add.s64 %rd124, %rd118, 64;
setp.eq.s64 %p54, %rd53, 2; @%p54 bra $L__BB0_63; ld.v4.u32 {%r616, %r617, %r618, %r619}, [%rd54+1024];
st.v4.u32 [%rd55+1024], {%r616, %r617, %r618, %r619}; add.s64 %rd124, %rd118, 96; $L__BB0_63:
setp.lt.u64 %p55, %rd52, 96; @%p55 bra $L__BB0_65; $L__BB0_64: shl.b64 %rd99, %rd124, 4;
add.s64 %rd100, %rd15, %rd99; add.s64 %rd101, %rd17, %rd99;
ld.v4.u32 {%r624, %r625, %r626, %r627}, [%rd101]; st.v4.u32 [%rd100], {%r624, %r625, %r626, %r627};
ld.v4.u32 {%r632, %r633, %r634, %r635}, [%rd101+512];
st.v4.u32 [%rd100+512], {%r632, %r633, %r634, %r635};
ld.v4.u32 {%r640, %r641, %r642, %r643}, [%rd101+1024];
st.v4.u32 [%rd100+1024], {%r640, %r641, %r642, %r643};
ld.v4.u32 {%r648, %r649, %r650, %r651}, [%rd101+1536];
st.v4.u32 [%rd100+1536], {%r648, %r649, %r650, %r651}; add.s64 %rd124, %rd124, 128;
setp.lt.u64 %p56, %rd124, %rd19; @%p56 bra $L__BB0_64; bra.uni $L__BB0_65; $L__BB0_47:
shf.r.wrap.b32 %r689, %r684, %r94, %r7; shf.r.wrap.b32 %r690, %r94, %r93, %r7;
shf.r.wrap.b32 %r691, %r93, %r92, %r7; shf.r.wrap.b32 %r692, %r92, %r107, %r7; bra.uni $L__BB0_49;
$L__BB0_46: shf.r.wrap.b32 %r689, %r94, %r93, %r7; shf.r.wrap.b32 %r690, %r93, %r92, %r7;
shf.r.wrap.b32 %r691, %r92, %r107, %r7; shf.r.wrap.b32 %r692, %r107, %r106, %r7; bra.uni $L__BB0_49;
$L__BB0_48: shf.r.wrap.b32 %r689, %r92, %r107, %r7; shf.r.wrap.b32 %r690, %r107, %r106, %r7;
shf.r.wrap.b32 %r691, %r106, %r686, %r7; shf.r.wrap.b32 %r692, %r686, %r685, %r7; $L__BB0_49:
add.s64 %rd82, %rd15, %rd80; st.v4.u32 [%rd82], {%r689, %r690, %r691, %r692}; $L__BB0_65:
and.b64 %rd102, %rd18, -16; or.b64 %rd62, %rd102, %rd14; and.b64 %rd103, %rd18, 15;
setp.le.u64 %p57, %rd103, %rd1; @%p57 bra $L__BB0_70; add.s64 %rd104, %rd62, %rd1;
add.s64 %rd105, %rd11, %rd104; ld.u8 %rs6, [%rd105]; add.s64 %rd106, %rd12, %rd104;
st.u8 [%rd106], %rs6; $L__BB0_70: add.s32 %r656, %r656, %r4; setp.lt.u32 %p60, %r656, %r129;
@%p60 bra $L__BB0_2; $L__BB0_71: ret; }
)ptx";

}  // namespace inrush::engine
