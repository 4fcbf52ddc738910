// Made by tools/make_ptx.sh from copy_kernel.cu; change that one.
// sha256 734580382bca2e3955872d0d0499ffdcf94e3f71b9df2430a15d68c5da4405e0
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
.reg .pred %p<90>;
.reg .b16 %rs<13>;
.reg .b32 %r<1178>;
.reg .b64 %rd<187>;
ld.param.u64 %rd79, [inrush_copy_runs_param_0]; ld.param.u32 %r299, [inrush_copy_runs_param_1];
cvta.to.global.u64 %rd1, %rd79; mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 31; mov.u32 %r3, %ntid.x;
mov.u32 %r300, %ctaid.x; mad.lo.s32 %r301, %r300, %r3, %r1; shr.u32 %r1109, %r301, 5;
setp.ge.u32 %p17, %r1109, %r299; @%p17 bra $L__BB0_111; mul.wide.u32 %rd80, %r1109, 24;
add.s64 %rd81, %rd1, %rd80; ld.global.u64 %rd167, [%rd81]; ld.global.u64 %rd166, [%rd81+8];
ld.global.u64 %rd165, [%rd81+16]; cvt.u64.u32 %rd5, %r2; or.b64 %rd6, %rd5, 96; add.s32 %r302, %r1, 1;
and.b32 %r5, %r302, 31; mul.wide.u32 %rd14, %r2, 16; or.b64 %rd15, %rd14, 1536;
mov.u32 %r303, %nctaid.x; mul.lo.s32 %r304, %r303, %r3; shr.u32 %r6, %r304, 5; $L__BB0_2:
mov.u64 %rd18, %rd167; mov.u64 %rd17, %rd166; mov.u64 %rd16, %rd165; add.s32 %r1109, %r1109, %r6;
setp.ge.u32 %p18, %r1109, %r299; mov.u64 %rd167, 0; mov.u64 %rd166, %rd167; mov.u64 %rd165, %rd167;
@%p18 bra $L__BB0_4; mul.wide.u32 %rd86, %r1109, 24; add.s64 %rd87, %rd1, %rd86;
ld.global.u64 %rd165, [%rd87+16]; ld.global.u64 %rd166, [%rd87+8]; ld.global.u64 %rd167, [%rd87];
$L__BB0_4: setp.lt.u64 %p19, %rd16, 64; @%p19 bra $L__BB0_107; bra.uni $L__BB0_5; $L__BB0_107:
setp.le.u64 %p87, %rd16, %rd5; @%p87 bra $L__BB0_110; mov.u64 %rd186, %rd5; $L__BB0_109:
add.s64 %rd141, %rd18, %rd186; ld.u8 %rs12, [%rd141]; add.s64 %rd142, %rd17, %rd186;
st.u8 [%rd142], %rs12; add.s64 %rd186, %rd186, 32; setp.lt.u64 %p88, %rd186, %rd16;
@%p88 bra $L__BB0_109; bra.uni $L__BB0_110; $L__BB0_5: neg.s64 %rd88, %rd17; and.b64 %rd25, %rd88, 15;
setp.le.u64 %p20, %rd25, %rd5; @%p20 bra $L__BB0_7; add.s64 %rd89, %rd18, %rd5; ld.u8 %rs3, [%rd89];
add.s64 %rd90, %rd17, %rd5; st.u8 [%rd90], %rs3; $L__BB0_7: neg.s64 %rd147, %rd17;
and.b64 %rd146, %rd147, 15; add.s64 %rd91, %rd18, %rd146; add.s64 %rd26, %rd17, %rd146;
cvt.u32.u64 %r9, %rd91; and.b32 %r10, %r9, 15; and.b64 %rd92, %rd91, 15; sub.s64 %rd93, %rd146, %rd92;
add.s64 %rd27, %rd18, %rd93; sub.s64 %rd28, %rd16, %rd146; shr.u64 %rd29, %rd28, 4;
setp.eq.s32 %p21, %r10, 0; @%p21 bra $L__BB0_90; neg.s64 %rd150, %rd17; and.b64 %rd149, %rd150, 15;
sub.s64 %rd148, %rd16, %rd146; setp.lt.u64 %p22, %rd148, 2048; mov.u64 %rd175, 0; @%p22 bra $L__BB0_47;
add.s64 %rd153, %rd18, %rd146; cvt.u32.u64 %r1107, %rd153; neg.s64 %rd152, %rd17;
and.b64 %rd151, %rd152, 15; shl.b32 %r305, %r1107, 3; and.b32 %r11, %r305, 24; shr.u32 %r306, %r10, 2;
cvt.u16.u32 %rs1, %r306; add.s64 %rd97, %rd17, %rd14; add.s64 %rd174, %rd97, %rd151; mov.u64 %rd175, 0;
mov.u64 %rd172, 2048; mov.u64 %rd171, %rd15; $L__BB0_10: mov.u64 %rd34, %rd174; mov.u64 %rd33, %rd175;
add.s64 %rd98, %rd27, %rd171; ld.v4.u32 {%r307, %r308, %r309, %r310}, [%rd98+-1536];
ld.v4.u32 {%r311, %r312, %r313, %r314}, [%rd98+-1024];
ld.v4.u32 {%r315, %r316, %r317, %r318}, [%rd98+-512]; ld.v4.u32 {%r319, %r320, %r321, %r322}, [%rd98];
add.s64 %rd99, %rd27, %rd172; ld.v4.u32 {%r1134, %r1135, %r1136, %r1137}, [%rd99];
setp.eq.s32 %p23, %r2, 0; mov.u32 %r1110, %r314; mov.u32 %r1111, %r313; mov.u32 %r1112, %r312;
mov.u32 %r1113, %r311; @%p23 bra $L__BB0_12; mov.u32 %r1110, %r310; mov.u32 %r1111, %r309;
mov.u32 %r1112, %r308; mov.u32 %r1113, %r307; $L__BB0_12: mov.u32 %r327, 31; mov.u32 %r328, -1;
shfl.sync.idx.b32 %r36|%p24, %r1113, %r5, %r327, %r328;
shfl.sync.idx.b32 %r37|%p25, %r1112, %r5, %r327, %r328;
shfl.sync.idx.b32 %r38|%p26, %r1111, %r5, %r327, %r328;
shfl.sync.idx.b32 %r39|%p1, %r1110, %r5, %r327, %r328; setp.eq.s16 %p27, %rs1, 0; @%p27 bra $L__BB0_17;
setp.eq.s16 %p28, %rs1, 1; @%p28 bra $L__BB0_16; setp.ne.s16 %p29, %rs1, 2; @%p29 bra $L__BB0_18;
shf.r.wrap.b32 %r1114, %r309, %r310, %r11; shf.r.wrap.b32 %r1115, %r310, %r36, %r11;
shf.r.wrap.b32 %r1116, %r36, %r37, %r11; shf.r.wrap.b32 %r1117, %r37, %r38, %r11; bra.uni $L__BB0_19;
$L__BB0_17: shf.r.wrap.b32 %r1114, %r307, %r308, %r11; shf.r.wrap.b32 %r1115, %r308, %r309, %r11;
shf.r.wrap.b32 %r1116, %r309, %r310, %r11; shf.r.wrap.b32 %r1117, %r310, %r36, %r11; bra.uni $L__BB0_19;
$L__BB0_16: shf.r.wrap.b32 %r1114, %r308, %r309, %r11; shf.r.wrap.b32 %r1115, %r309, %r310, %r11;
shf.r.wrap.b32 %r1116, %r310, %r36, %r11; shf.r.wrap.b32 %r1117, %r36, %r37, %r11; bra.uni $L__BB0_19;
$L__BB0_18: shf.r.wrap.b32 %r1114, %r310, %r36, %r11; shf.r.wrap.b32 %r1115, %r36, %r37, %r11;
shf.r.wrap.b32 %r1116, %r37, %r38, %r11; shf.r.wrap.b32 %r1117, %r38, %r39, %r11; $L__BB0_19:
st.v4.u32 [%rd34], {%r1114, %r1115, %r1116, %r1117}; mov.u32 %r1118, %r315; mov.u32 %r1119, %r316;
mov.u32 %r1120, %r317; mov.u32 %r1121, %r318; @%p23 bra $L__BB0_21; mov.u32 %r1118, %r311;
mov.u32 %r1119, %r312; mov.u32 %r1120, %r313; mov.u32 %r1121, %r314; $L__BB0_21: mov.u32 %r393, 31;
mov.u32 %r394, -1; shfl.sync.idx.b32 %r64|%p31, %r1118, %r5, %r393, %r394;
shfl.sync.idx.b32 %r65|%p32, %r1119, %r5, %r393, %r394;
shfl.sync.idx.b32 %r66|%p33, %r1120, %r5, %r393, %r394;
shfl.sync.idx.b32 %r67|%p2, %r1121, %r5, %r393, %r394; @%p27 bra $L__BB0_26; setp.eq.s16 %p35, %rs1, 1;
@%p35 bra $L__BB0_25; setp.ne.s16 %p36, %rs1, 2; @%p36 bra $L__BB0_27;
shf.r.wrap.b32 %r1122, %r313, %r314, %r11; shf.r.wrap.b32 %r1123, %r314, %r64, %r11;
shf.r.wrap.b32 %r1124, %r64, %r65, %r11; shf.r.wrap.b32 %r1125, %r65, %r66, %r11; bra.uni $L__BB0_28;
$L__BB0_26: shf.r.wrap.b32 %r1122, %r311, %r312, %r11; shf.r.wrap.b32 %r1123, %r312, %r313, %r11;
shf.r.wrap.b32 %r1124, %r313, %r314, %r11; shf.r.wrap.b32 %r1125, %r314, %r64, %r11; bra.uni $L__BB0_28;
$L__BB0_25: shf.r.wrap.b32 %r1122, %r312, %r313, %r11; shf.r.wrap.b32 %r1123, %r313, %r314, %r11;
shf.r.wrap.b32 %r1124, %r314, %r64, %r11; shf.r.wrap.b32 %r1125, %r64, %r65, %r11; bra.uni $L__BB0_28;
$L__BB0_27: shf.r.wrap.b32 %r1122, %r314, %r64, %r11; shf.r.wrap.b32 %r1123, %r64, %r65, %r11;
shf.r.wrap.b32 %r1124, %r65, %r66, %r11; shf.r.wrap.b32 %r1125, %r66, %r67, %r11; $L__BB0_28:
st.v4.u32 [%rd34+512], {%r1122, %r1123, %r1124, %r1125}; mov.u32 %r1126, %r319; mov.u32 %r1127, %r320;
mov.u32 %r1128, %r321; mov.u32 %r1129, %r322; @%p23 bra $L__BB0_30; mov.u32 %r1126, %r315;
mov.u32 %r1127, %r316; mov.u32 %r1128, %r317; mov.u32 %r1129, %r318; $L__BB0_30: mov.u32 %r459, 31;
mov.u32 %r460, -1; shfl.sync.idx.b32 %r92|%p38, %r1126, %r5, %r459, %r460;
shfl.sync.idx.b32 %r93|%p39, %r1127, %r5, %r459, %r460;
shfl.sync.idx.b32 %r94|%p40, %r1128, %r5, %r459, %r460;
shfl.sync.idx.b32 %r95|%p3, %r1129, %r5, %r459, %r460; @%p27 bra $L__BB0_35; setp.eq.s16 %p42, %rs1, 1;
@%p42 bra $L__BB0_34; setp.ne.s16 %p43, %rs1, 2; @%p43 bra $L__BB0_36;
shf.r.wrap.b32 %r1130, %r317, %r318, %r11; shf.r.wrap.b32 %r1131, %r318, %r92, %r11;
shf.r.wrap.b32 %r1132, %r92, %r93, %r11; shf.r.wrap.b32 %r1133, %r93, %r94, %r11; bra.uni $L__BB0_37;
$L__BB0_35: shf.r.wrap.b32 %r1130, %r315, %r316, %r11; shf.r.wrap.b32 %r1131, %r316, %r317, %r11;
shf.r.wrap.b32 %r1132, %r317, %r318, %r11; shf.r.wrap.b32 %r1133, %r318, %r92, %r11; bra.uni $L__BB0_37;
$L__BB0_34: shf.r.wrap.b32 %r1130, %r316, %r317, %r11; shf.r.wrap.b32 %r1131, %r317, %r318, %r11;
shf.r.wrap.b32 %r1132, %r318, %r92, %r11; shf.r.wrap.b32 %r1133, %r92, %r93, %r11; bra.uni $L__BB0_37;
$L__BB0_36: shf.r.wrap.b32 %r1130, %r318, %r92, %r11; shf.r.wrap.b32 %r1131, %r92, %r93, %r11;
shf.r.wrap.b32 %r1132, %r93, %r94, %r11; shf.r.wrap.b32 %r1133, %r94, %r95, %r11; $L__BB0_37:
st.v4.u32 [%rd34+1024], {%r1130, %r1131, %r1132, %r1133}; @%p23 bra $L__BB0_39; mov.u32 %r1134, %r319;
mov.u32 %r1135, %r320; mov.u32 %r1136, %r321; mov.u32 %r1137, %r322; $L__BB0_39: mov.u32 %r525, 31;
mov.u32 %r526, -1; shfl.sync.idx.b32 %r124|%p45, %r1134, %r5, %r525, %r526;
shfl.sync.idx.b32 %r125|%p46, %r1135, %r5, %r525, %r526;
shfl.sync.idx.b32 %r126|%p47, %r1136, %r5, %r525, %r526;
shfl.sync.idx.b32 %r127|%p4, %r1137, %r5, %r525, %r526; @%p27 bra $L__BB0_44; setp.eq.s16 %p49, %rs1, 1;
@%p49 bra $L__BB0_43; setp.ne.s16 %p50, %rs1, 2; @%p50 bra $L__BB0_45;
shf.r.wrap.b32 %r1138, %r321, %r322, %r11; shf.r.wrap.b32 %r1139, %r322, %r124, %r11;
shf.r.wrap.b32 %r1140, %r124, %r125, %r11; shf.r.wrap.b32 %r1141, %r125, %r126, %r11;
bra.uni $L__BB0_46; $L__BB0_44: shf.r.wrap.b32 %r1138, %r319, %r320, %r11;
shf.r.wrap.b32 %r1139, %r320, %r321, %r11; shf.r.wrap.b32 %r1140, %r321, %r322, %r11;
shf.r.wrap.b32 %r1141, %r322, %r124, %r11; bra.uni $L__BB0_46; $L__BB0_43:
shf.r.wrap.b32 %r1138, %r320, %r321, %r11; shf.r.wrap.b32 %r1139, %r321, %r322, %r11;
shf.r.wrap.b32 %r1140, %r322, %r124, %r11; shf.r.wrap.b32 %r1141, %r124, %r125, %r11;
bra.uni $L__BB0_46; $L__BB0_45: shf.r.wrap.b32 %r1138, %r322, %r124, %r11;
shf.r.wrap.b32 %r1139, %r124, %r125, %r11; shf.r.wrap.b32 %r1140, %r125, %r126, %r11;
shf.r.wrap.b32 %r1141, %r126, %r127, %r11; $L__BB0_46: add.s64 %rd174, %rd34, 2048;
st.v4.u32 [%rd34+1536], {%r1138, %r1139, %r1140, %r1141}; add.s64 %rd172, %rd172, 2048;
add.s64 %rd175, %rd33, 128; add.s64 %rd100, %rd33, 256; add.s64 %rd171, %rd171, 2048;
setp.le.u64 %p51, %rd100, %rd29; @%p51 bra $L__BB0_10; $L__BB0_47: setp.ge.u64 %p52, %rd175, %rd29;
@%p52 bra $L__BB0_105; neg.s64 %rd164, %rd17; and.b64 %rd163, %rd164, 15; add.s64 %rd162, %rd18, %rd146;
cvt.u32.u64 %r1108, %rd162; shl.b32 %r591, %r1108, 3; and.b32 %r148, %r591, 24; shr.u32 %r592, %r10, 2;
cvt.u16.u32 %rs2, %r592; not.b64 %rd101, %rd175; add.s64 %rd40, %rd29, %rd101;
and.b64 %rd102, %rd40, 32; setp.ne.s64 %p53, %rd102, 0; @%p53 bra $L__BB0_62;
add.s64 %rd41, %rd175, %rd5; setp.gt.u64 %p54, %rd41, %rd29; mov.u32 %r1142, 0; mov.u32 %r154, %r1142;
mov.u32 %r155, %r1142; mov.u32 %r156, %r1142; @%p54 bra $L__BB0_51; shl.b64 %rd103, %rd41, 4;
add.s64 %rd104, %rd27, %rd103; ld.v4.u32 {%r1142, %r154, %r155, %r156}, [%rd104]; $L__BB0_51:
add.s64 %rd175, %rd175, 32; setp.eq.s32 %p55, %r2, 0; mov.u32 %r1146, %r1142; mov.u32 %r1147, %r154;
mov.u32 %r1148, %r155; mov.u32 %r1149, %r156; @%p55 bra $L__BB0_52; bra.uni $L__BB0_53; $L__BB0_52:
min.u64 %rd105, %rd175, %rd29; shl.b64 %rd106, %rd105, 4; add.s64 %rd107, %rd27, %rd106;
ld.v4.u32 {%r1146, %r1147, %r1148, %r1149}, [%rd107]; $L__BB0_53: mov.u32 %r605, 31; mov.u32 %r606, -1;
shfl.sync.idx.b32 %r169|%p5, %r1146, %r5, %r605, %r606;
shfl.sync.idx.b32 %r170|%p6, %r1147, %r5, %r605, %r606;
shfl.sync.idx.b32 %r171|%p7, %r1148, %r5, %r605, %r606;
shfl.sync.idx.b32 %r172|%p8, %r1149, %r5, %r605, %r606; setp.ge.u64 %p56, %rd41, %rd29;
@%p56 bra $L__BB0_62; setp.eq.s16 %p57, %rs2, 0; @%p57 bra $L__BB0_59; setp.eq.s16 %p58, %rs2, 1;
@%p58 bra $L__BB0_58; setp.ne.s16 %p59, %rs2, 2; @%p59 bra $L__BB0_60;
shf.r.wrap.b32 %r1150, %r155, %r156, %r148; shf.r.wrap.b32 %r1151, %r156, %r169, %r148;
shf.r.wrap.b32 %r1152, %r169, %r170, %r148; shf.r.wrap.b32 %r1153, %r170, %r171, %r148;
bra.uni $L__BB0_61; $L__BB0_90: setp.ge.u64 %p74, %rd6, %rd29; mov.u64 %rd180, %rd5;
@%p74 bra $L__BB0_98; mov.u64 %rd155, -97; sub.s64 %rd154, %rd155, %rd5; add.s64 %rd51, %rd154, %rd29;
shr.u64 %rd120, %rd51, 7; add.s64 %rd121, %rd120, 1; and.b64 %rd52, %rd121, 3;
setp.eq.s64 %p75, %rd52, 0; mov.u64 %rd178, %rd6; mov.u64 %rd180, %rd5; @%p75 bra $L__BB0_95;
or.b64 %rd180, %rd5, 128; or.b64 %rd178, %rd5, 224; shl.b64 %rd122, %rd5, 4;
add.s64 %rd53, %rd27, %rd122; ld.v4.u32 {%r827, %r828, %r829, %r830}, [%rd53+512];
ld.v4.u32 {%r835, %r836, %r837, %r838}, [%rd53+1024];
ld.v4.u32 {%r843, %r844, %r845, %r846}, [%rd53+1536]; add.s64 %rd54, %rd26, %rd122;
ld.v4.u32 {%r851, %r852, %r853, %r854}, [%rd53]; st.v4.u32 [%rd54], {%r851, %r852, %r853, %r854};
st.v4.u32 [%rd54+512], {%r827, %r828, %r829, %r830};
st.v4.u32 [%rd54+1024], {%r835, %r836, %r837, %r838};
st.v4.u32 [%rd54+1536], {%r843, %r844, %r845, %r846}; setp.eq.s64 %p76, %rd52, 1; @%p76 bra $L__BB0_95;
or.b64 %rd180, %rd5, 256; or.b64 %rd178, %rd5, 352;
ld.v4.u32 {%r859, %r860, %r861, %r862}, [%rd53+2560];
ld.v4.u32 {%r867, %r868, %r869, %r870}, [%rd53+3072];
ld.v4.u32 {%r875, %r876, %r877, %r878}, [%rd53+3584];
ld.v4.u32 {%r883, %r884, %r885, %r886}, [%rd53+2048];
st.v4.u32 [%rd54+2048], {%r883, %r884, %r885, %r886};
st.v4.u32 [%rd54+2560], {%r859, %r860, %r861, %r862};
st.v4.u32 [%rd54+3072], {%r867, %r868, %r869, %r870};
st.v4.u32 [%rd54+3584], {%r875, %r876, %r877, %r878}; setp.eq.s64 %p77, %rd52, 2; @%p77 bra $L__BB0_95;
or.b64 %rd180, %rd5, 384; or.b64 %rd178, %rd5, 480;
ld.v4.u32 {%r891, %r892, %r893, %r894}, [%rd53+4608];
ld.v4.u32 {%r899, %r900, %r901, %r902}, [%rd53+5120];
ld.v4.u32 {%r907, %r908, %r909, %r910}, [%rd53+5632];
ld.v4.u32 {%r915, %r916, %r917, %r918}, [%rd53+4096];
st.v4.u32 [%rd54+4096], {%r915, %r916, %r917, %r918};
st.v4.u32 [%rd54+4608], {%r891, %r892, %r893, %r894};
st.v4.u32 [%rd54+5120], {%r899, %r900, %r901, %r902};
st.v4.u32 [%rd54+5632], {%r907, %r908, %r909, %r910}; $L__BB0_95: setp.lt.u64 %p78, %rd51, 384;
@%p78 bra $L__BB0_98; mov.u64 %rd182, %rd180; $L__BB0_97: shl.b64 %rd123, %rd182, 4;
add.s64 %rd124, %rd27, %rd123; ld.v4.u32 {%r923, %r924, %r925, %r926}, [%rd124+512];
ld.v4.u32 {%r931, %r932, %r933, %r934}, [%rd124+1024]; shl.b64 %rd125, %rd178, 4;
add.s64 %rd126, %rd27, %rd125; ld.v4.u32 {%r939, %r940, %r941, %r942}, [%rd126];
add.s64 %rd127, %rd26, %rd123; ld.v4.u32 {%r947, %r948, %r949, %r950}, [%rd124];
st.v4.u32 [%rd127], {%r947, %r948, %r949, %r950}; st.v4.u32 [%rd127+512], {%r923, %r924, %r925, %r926};
st.v4.u32 [%rd127+1024], {%r931, %r932, %r933, %r934}; add.s64 %rd128, %rd26, %rd125;
st.v4.u32 [%rd128], {%r939, %r940, %r941, %r942}; ld.v4.u32 {%r955, %r956, %r957, %r958}, [%rd124+2560];
ld.v4.u32 {%r963, %r964, %r965, %r966}, [%rd124+3072];
ld.v4.u32 {%r971, %r972, %r973, %r974}, [%rd124+3584];
ld.v4.u32 {%r979, %r980, %r981, %r982}, [%rd124+2048];
st.v4.u32 [%rd127+2048], {%r979, %r980, %r981, %r982};
st.v4.u32 [%rd127+2560], {%r955, %r956, %r957, %r958};
st.v4.u32 [%rd127+3072], {%r963, %r964, %r965, %r966};
st.v4.u32 [%rd127+3584], {%r971, %r972, %r973, %r974};
ld.v4.u32 {%r987, %r988, %r989, %r990}, [%rd124+4608];
ld.v4.u32 {%r995, %r996, %r997, %r998}, [%rd124+5120];
ld.v4.u32 {%r1003, %r1004, %r1005, %r1006}, [%rd124+5632];
ld.v4.u32 {%r1011, %r1012, %r1013, %r1014}, [%rd124+4096];
st.v4.u32 [%rd127+4096], {%r1011, %r1012, %r1013, %r1014};
st.v4.u32 [%rd127+4608], {%r987, %r988, %r989, %r990};
st.v4.u32 [%rd127+5120], {%r995, %r996, %r997, %r998};
st.v4.u32 [%rd127+5632], {%r1003, %r1004, %r1005, %r1006};
ld.v4.u32 {%r1019, %r1020, %r1021, %r1022}, [%rd124+6656];
ld.v4.u32 {%r1027, %r1028, %r1029, %r1030}, [%rd124+7168];
ld.v4.u32 {%r1035, %r1036, %r1037, %r1038}, [%rd124+7680];
ld.v4.u32 {%r1043, %r1044, %r1045, %r1046}, [%rd124+6144];
st.v4.u32 [%rd127+6144], {%r1043, %r1044, %r1045, %r1046};
st.v4.u32 [%rd127+6656], {%r1019, %r1020, %r1021, %r1022};
st.v4.u32 [%rd127+7168], {%r1027, %r1028, %r1029, %r1030};
st.v4.u32 [%rd127+7680], {%r1035, %r1036, %r1037, %r1038}; add.s64 %rd180, %rd182, 512;
add.s64 %rd178, %rd182, 608; setp.lt.u64 %p79, %rd178, %rd29; mov.u64 %rd182, %rd180;
@%p79 bra $L__BB0_97; $L__BB0_98: setp.ge.u64 %p80, %rd180, %rd29; @%p80 bra $L__BB0_105;
not.b64 %rd129, %rd180; add.s64 %rd63, %rd29, %rd129; shr.u64 %rd130, %rd63, 5;
add.s64 %rd131, %rd130, 1; and.b64 %rd64, %rd131, 3; setp.eq.s64 %p81, %rd64, 0; mov.u64 %rd184, %rd180;
@%p81 bra $L__BB0_103; shl.b64 %rd132, %rd180, 4; add.s64 %rd66, %rd26, %rd132;
add.s64 %rd65, %rd27, %rd132; ld.v4.u32 {%r1051, %r1052, %r1053, %r1054}, [%rd65];
st.v4.u32 [%rd66], {%r1051, %r1052, %r1053, %r1054}; add.s64 %rd184, %rd180, 32;
setp.eq.s64 %p82, %rd64, 1; @%p82 bra $L__BB0_103;
ld.v4.u32 {%r1059, %r1060, %r1061, %r1062}, [%rd65+512];
st.v4.u32 [%rd66+512], {%r1059, %r1060, %r1061, %r1062}; add.s64 %rd184, %rd180, 64;
setp.eq.s64 %p83, %rd64, 2; @%p83 bra $L__BB0_103;
ld.v4.u32 {%r1067, %r1068, %r1069, %r1070}, [%rd65+1024];
st.v4.u32 [%rd66+1024], {%r1067, %r1068, %r1069, %r1070}; add.s64 %rd184, %rd180, 96; $L__BB0_103:
setp.lt.u64 %p84, %rd63, 96; @%p84 bra $L__BB0_105; $L__BB0_104: shl.b64 %rd133, %rd184, 4;
add.s64 %rd134, %rd26, %rd133; add.s64 %rd135, %rd27, %rd133;
ld.v4.u32 {%r1075, %r1076, %r1077, %r1078}, [%rd135];
st.v4.u32 [%rd134], {%r1075, %r1076, %r1077, %r1078};
ld.v4.u32 {%r1083, %r1084, %r1085, %r1086}, [%rd135+512];
st.v4.u32 [%rd134+512], {%r1083, %r1084, %r1085, %r1086};
ld.v4.u32 {%r1091, %r1092, %r1093, %r1094}, [%rd135+1024];
st.v4.u32 [%rd134+1024], {%r1091, %r1092, %r1093, %r1094};
ld.v4.u32 {%r1099, %r1100, %r1101, %r1102}, [%rd135+1536];
st.v4.u32 [%rd134+1536], {%r1099, %r1100, %r1101, %r1102}; add.s64 %rd184, %rd184, 128;
setp.lt.u64 %p85, %rd184, %rd29; @%p85 bra $L__BB0_104; bra.uni $L__BB0_105; $L__BB0_59:
shf.r.wrap.b32 %r1150, %r1142, %r154, %r148; shf.r.wrap.b32 %r1151, %r154, %r155, %r148;
shf.r.wrap.b32 %r1152, %r155, %r156, %r148; shf.r.wrap.b32 %r1153, %r156, %r169, %r148;
bra.uni $L__BB0_61; $L__BB0_58: shf.r.wrap.b32 %r1150, %r154, %r155, %r148;
shf.r.wrap.b32 %r1151, %r155, %r156, %r148; shf.r.wrap.b32 %r1152, %r156, %r169, %r148;
shf.r.wrap.b32 %r1153, %r169, %r170, %r148; bra.uni $L__BB0_61; $L__BB0_60:
shf.r.wrap.b32 %r1150, %r156, %r169, %r148; shf.r.wrap.b32 %r1151, %r169, %r170, %r148;
shf.r.wrap.b32 %r1152, %r170, %r171, %r148; shf.r.wrap.b32 %r1153, %r171, %r172, %r148; $L__BB0_61:
shl.b64 %rd108, %rd41, 4; add.s64 %rd109, %rd26, %rd108;
st.v4.u32 [%rd109], {%r1150, %r1151, %r1152, %r1153}; $L__BB0_62: and.b64 %rd110, %rd40, -32;
setp.eq.s64 %p60, %rd110, 0; @%p60 bra $L__BB0_105; $L__BB0_63: add.s64 %rd45, %rd175, %rd5;
setp.gt.u64 %p61, %rd45, %rd29; shl.b64 %rd111, %rd45, 4; add.s64 %rd46, %rd27, %rd111;
mov.u32 %r1154, 0; mov.u32 %r204, %r1154; mov.u32 %r205, %r1154; mov.u32 %r206, %r1154;
@%p61 bra $L__BB0_65; ld.v4.u32 {%r1154, %r204, %r205, %r206}, [%rd46]; $L__BB0_65:
add.s64 %rd47, %rd175, 32; setp.eq.s32 %p62, %r2, 0; mov.u32 %r1158, %r1154; mov.u32 %r1159, %r204;
mov.u32 %r1160, %r205; mov.u32 %r1161, %r206; @%p62 bra $L__BB0_66; bra.uni $L__BB0_67; $L__BB0_66:
min.u64 %rd112, %rd47, %rd29; shl.b64 %rd113, %rd112, 4; add.s64 %rd114, %rd27, %rd113;
ld.v4.u32 {%r1158, %r1159, %r1160, %r1161}, [%rd114]; $L__BB0_67: mov.u32 %r683, 31; mov.u32 %r684, -1;
shfl.sync.idx.b32 %r219|%p9, %r1158, %r5, %r683, %r684;
shfl.sync.idx.b32 %r220|%p10, %r1159, %r5, %r683, %r684;
shfl.sync.idx.b32 %r221|%p11, %r1160, %r5, %r683, %r684;
shfl.sync.idx.b32 %r222|%p12, %r1161, %r5, %r683, %r684; add.s64 %rd48, %rd26, %rd111;
setp.ge.u64 %p63, %rd45, %rd29; @%p63 bra $L__BB0_76; setp.eq.s16 %p64, %rs2, 0; @%p64 bra $L__BB0_73;
setp.eq.s16 %p65, %rs2, 1; @%p65 bra $L__BB0_72; setp.ne.s16 %p66, %rs2, 2; @%p66 bra $L__BB0_74;
shf.r.wrap.b32 %r1162, %r205, %r206, %r148; shf.r.wrap.b32 %r1163, %r206, %r219, %r148;
shf.r.wrap.b32 %r1164, %r219, %r220, %r148; shf.r.wrap.b32 %r1165, %r220, %r221, %r148;
bra.uni $L__BB0_75; $L__BB0_73: shf.r.wrap.b32 %r1162, %r1154, %r204, %r148;
shf.r.wrap.b32 %r1163, %r204, %r205, %r148; shf.r.wrap.b32 %r1164, %r205, %r206, %r148;
shf.r.wrap.b32 %r1165, %r206, %r219, %r148; bra.uni $L__BB0_75; $L__BB0_72:
shf.r.wrap.b32 %r1162, %r204, %r205, %r148; shf.r.wrap.b32 %r1163, %r205, %r206, %r148;
shf.r.wrap.b32 %r1164, %r206, %r219, %r148; shf.r.wrap.b32 %r1165, %r219, %r220, %r148;
bra.uni $L__BB0_75; $L__BB0_74: shf.r.wrap.b32 %r1162, %r206, %r219, %r148;
shf.r.wrap.b32 %r1163, %r219, %r220, %r148; shf.r.wrap.b32 %r1164, %r220, %r221, %r148;
shf.r.wrap.b32 %r1165, %r221, %r222, %r148; $L__BB0_75:
st.v4.u32 [%rd48], {%r1162, %r1163, %r1164, %r1165}; $L__BB0_76: add.s64 %rd49, %rd47, %rd5;
setp.gt.u64 %p67, %rd49, %rd29; mov.u32 %r1166, 0; mov.u32 %r254, %r1166; mov.u32 %r255, %r1166;
mov.u32 %r256, %r1166; @%p67 bra $L__BB0_78; ld.v4.u32 {%r1166, %r254, %r255, %r256}, [%rd46+512];
$L__BB0_78: add.s64 %rd175, %rd175, 64; mov.u32 %r1170, %r1166; mov.u32 %r1171, %r254;
mov.u32 %r1172, %r255; mov.u32 %r1173, %r256; @%p62 bra $L__BB0_79; bra.uni $L__BB0_80; $L__BB0_79:
min.u64 %rd116, %rd175, %rd29; shl.b64 %rd117, %rd116, 4; add.s64 %rd118, %rd27, %rd117;
ld.v4.u32 {%r1170, %r1171, %r1172, %r1173}, [%rd118]; $L__BB0_80: mov.u32 %r761, 31; mov.u32 %r762, -1;
shfl.sync.idx.b32 %r269|%p13, %r1170, %r5, %r761, %r762;
shfl.sync.idx.b32 %r270|%p14, %r1171, %r5, %r761, %r762;
shfl.sync.idx.b32 %r271|%p15, %r1172, %r5, %r761, %r762;
shfl.sync.idx.b32 %r272|%p16, %r1173, %r5, %r761, %r762; setp.ge.u64 %p69, %rd49, %rd29;
@%p69 bra $L__BB0_89; setp.eq.s16 %p70, %rs2, 0; @%p70 bra $L__BB0_86; setp.eq.s16 %p71, %rs2, 1;
@%p71 bra $L__BB0_85; setp.ne.s16 %p72, %rs2, 2; @%p72 bra $L__BB0_87;
shf.r.wrap.b32 %r1174, %r255, %r256, %r148; shf.r.wrap.b32 %r1175, %r256, %r269, %r148;
shf.r.wrap.b32 %r1176, %r269, %r270, %r148; shf.r.wrap.b32 %r1177, %r270, %r271, %r148;
bra.uni $L__BB0_88; $L__BB0_86: shf.r.wrap.b32 %r1174, %r1166, %r254, %r148;
shf.r.wrap.b32 %r1175, %r254, %r255, %r148; shf.r.wrap.b32 %r1176, %r255, %r256, %r148;
shf.r.wrap.b32 %r1177, %r256, %r269, %r148; bra.uni $L__BB0_88; $L__BB0_85:
shf.r.wrap.b32 %r1174, %r254, %r255, %r148; shf.r.wrap.b32 %r1175, %r255, %r256, %r148;
shf.r.wrap.b32 %r1176, %r256, %r269, %r148; shf.r.wrap.b32 %r1177, %r269, %r270, %r148;
bra.uni $L__BB0_88; $L__BB0_87: shf.r.wrap.b32 %r1174, %r256, %r269, %r148;
shf.r.wrap.b32 %r1175, %r269, %r270, %r148; shf.r.wrap.b32 %r1176, %r270, %r271, %r148;
shf.r.wrap.b32 %r1177, %r271, %r272, %r148; $L__BB0_88:
st.v4.u32 [%rd48+512], {%r1174, %r1175, %r1176, %r1177}; $L__BB0_89: setp.lt.u64 %p73, %rd175, %rd29;
@%p73 bra $L__BB0_63; $L__BB0_105: neg.s64 %rd145, %rd17; and.b64 %rd144, %rd145, 15;
sub.s64 %rd143, %rd16, %rd144; and.b64 %rd136, %rd143, -16; or.b64 %rd73, %rd136, %rd144;
and.b64 %rd137, %rd143, 15; setp.le.u64 %p86, %rd137, %rd5; @%p86 bra $L__BB0_110;
add.s64 %rd138, %rd73, %rd5; add.s64 %rd139, %rd18, %rd138; ld.u8 %rs11, [%rd139];
add.s64 %rd140, %rd17, %rd138; st.u8 [%rd140], %rs11; $L__BB0_110: setp.lt.u32 %p89, %r1109, %r299;
@%p89 bra $L__BB0_2; $L__BB0_111: ret; }
)ptx";

}  // namespace inrush::engine
